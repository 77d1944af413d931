"""Attention of genomic models, compared with its references in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.genomics import attention
from mlff_triton.kernels.genomics.reference import attention as reference
from mlff_triton.testing import assert_within
from tests.kernels.genomics.rows import halves, random

BOUNDS = {torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}  # error relative to the largest output


def assert_matches(found: Tensor, exact: Tensor, half: torch.dtype) -> None:
    assert found.dtype is half
    assert_within(found.cpu(), exact, BOUNDS[half])


@halves
@pytest.mark.parametrize(
    "size",
    [
        (1, 1, 1, 8, 4),
        (2, 63, 2, 16, 24),
        (1, 130, 2, 64, 192),
        (1, 64, 3, 24, 40),
        (1, 70, 2, 16, 96),
    ],
    ids=str,
)
def test_relative_attention(size, half, device):
    batch, length, heads, dim, value_dim = size
    torch.manual_seed(length)
    q, k = (random(batch, length, heads, dim, dtype=half) for _ in "qk")
    given = (
        *(q, k, random(batch, length, heads, value_dim, dtype=half)),
        random(2 * length - 1, heads, dim, dtype=half) / 2,
        *(random(heads, dim, dtype=half) / 2 for _ in "cp"),
    )
    exact = reference.relative_attention(*given)
    found = attention.relative_attention(*(x.to(device, half) for x in given))
    assert_matches(found, exact, half)


def test_relative_attention_takes_parts_of_one_product(device):
    length, heads, dim = 20, 2, 16
    joined = random(1, length, 3 * heads * dim).to(device, torch.float16)
    parts = joined.unflatten(2, (3, heads, dim)).unbind(2)
    rel, bias = (random(n, heads, dim).to(device, torch.float16) for n in (2 * length - 1, 2))
    others = rel, *bias
    found = attention.relative_attention(*parts, *others)
    assert torch.equal(
        found, attention.relative_attention(*(x.contiguous() for x in parts), *others)
    )


def test_relative_positions_are_those_of_a_shift():
    """The reference agrees with the shift by padding and reshaping that Enformer uses."""
    length, heads, dim = 5, 2, 4
    q, k, v = torch.randn(3, 1, length, heads, dim).double()
    rel, bias = (torch.randn(n, heads, dim).double() for n in (2 * length - 1, 2))
    position = torch.einsum("bihd,rhd->bhir", q / dim**0.5 + bias[1], rel)
    padded = torch.nn.functional.pad(position, (1, 0)).reshape(-1, heads, 2 * length, length)
    shifted = padded[:, :, 1:].reshape(-1, heads, length, 2 * length - 1)[..., :length]
    scores = torch.einsum("bihd,bjhd->bhij", q / dim**0.5 + bias[0], k) + shifted
    expected = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    torch.testing.assert_close(reference.relative_attention(q, k, v, rel, *bias), expected)


@halves
@pytest.mark.parametrize(
    "size",
    [(1, 16, 8, 16, 16, 1), (2, 48, 8, 32, 48, 3), (1, 144, 8, 128, 192, 9), (1, 30, 3, 16, 8, 6)],
    ids=str,
)
@pytest.mark.parametrize("rows", ["short", "long"])
def test_capped_attention(rows, size, half, device, monkeypatch):
    if rows == "long":
        monkeypatch.setattr(attention, "_CAPPED_SHORT", attention._CAPPED_LONG)
    batch, length, heads, dim, value_dim, n_bins = size
    torch.manual_seed(length)
    given = (
        random(batch, length, heads, dim, dtype=half),
        random(batch, length, dim, dtype=half),
        random(batch, length, value_dim, dtype=half),
        4 * random(batch, n_bins, n_bins, heads, dtype=half),
    )
    exact = reference.capped_attention(*given)
    found = attention.capped_attention(*(x.to(device, half) for x in given))
    assert_matches(found, exact, half)


@pytest.mark.parametrize(
    ("size", "bias"), [(200.0, 0.0), (1.0, 60_000.0), (1.0, -60_000.0), (1.0, -torch.inf)]
)
def test_caps_hold_for_huge_scores(size, bias, device):
    """A huge bias of one head and pair of bins does not reach the others."""
    q, biases = torch.full((1, 32, 8, 16), size).half(), torch.zeros(1, 2, 2, 8).half()
    k, v = size * torch.randn(1, 32, 16).half(), torch.randn(1, 32, 16).half()
    biases[0, 0, 1, 3] = bias
    given = q, k, v, biases
    exact = reference.capped_attention(*(x.double() for x in given))
    assert_matches(attention.capped_attention(*(x.to(device) for x in given)), exact, torch.float16)


def test_biases_that_are_not_numbers_are_seen(device):
    q, biases = torch.ones(1, 16, 8, 16, device=device).half(), torch.zeros(1, 1, 1, 8).half()
    biases[..., 0] = torch.nan
    found = attention.capped_attention(q, q[:, :, 0], q[:, :, 0], biases.to(device))
    assert found[:, :, 0].isnan().all()


def test_bad_arguments_are_refused(device):
    q = torch.ones(1, 32, 8, 16, device=device).half()
    k = q[:, :, 0]
    bias = torch.ones(1, 2, 2, 8, device=device).half()
    with pytest.raises(InputError, match="float16 or bfloat16"):
        attention.capped_attention(q.float(), k, k, bias)
    with pytest.raises(InputError, match="divides the length"):
        attention.capped_attention(q, k, k, bias.expand(1, 2, 2, 8).repeat(1, 2, 1, 1))
    with pytest.raises(InputError, match="cap must be"):
        attention.capped_attention(q, k, k, bias, cap=20.0)
    with pytest.raises(InputError, match="rel_k has the shape"):
        attention.relative_attention(q, q, q, q[0], q[0, 0], q[0, 0])
