"""Attention with biases of pairs, compared with its references in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.pairs.pair_attention import pair_attention, triangle_attention
from mlff_triton.kernels.pairs.reference import pair_attention as reference
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import (
    BOUNDS,
    assert_no_worse,
    dtypes,
    halves,
    random,
    random_mask,
    to,
)

pytestmark = pytest.mark.usefixtures("described")


def inputs(
    batch: int, rows: int, length: int, heads: int, dim: int, precision: torch.dtype
) -> tuple[Tensor, ...]:
    """Return q, k, v and biases, in float64."""
    q, k, v = (random(batch, rows, length, heads, dim, dtype=precision) for _ in "qkv")
    return q, k, v, 2 * random(batch, heads, length, length, dtype=precision)


def joined(q: Tensor, k: Tensor, v: Tensor, device: str, precision: torch.dtype) -> list[Tensor]:
    """Return views of one tensor, as from one product."""
    parts = torch.stack([q, k, v], -3).to(device, precision)
    return list(parts.unbind(-3))


@dtypes
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize(
    "size",
    [(1, 1, 1, 1, 32), (1, 17, 17, 2, 32), (2, 2, 100, 1, 24), (1, 3, 150, 2, 48), (1, 4, 9, 4, 8)],
    ids=str,
)
def test_pair_attention(size, masked, precision, device):
    given = inputs(*size, precision)
    mask = random_mask(*size[:3]) if masked else None
    exact = reference.pair_attention(*given, mask)
    q, k, v = joined(*given[:3], device, precision)
    bias = given[3].to(device, precision)
    found = pair_attention(q, k, v, bias, None if mask is None else mask.to(device))
    assert found.dtype is precision
    assert_within(found.cpu(), exact, BOUNDS[precision])
    own = reference.pair_attention(*to((*given, mask), device, precision))
    assert_no_worse(found, exact, own, precision)


@pytest.mark.parametrize("key", [0, 20, 69])
@pytest.mark.parametrize("size", [2.0**-80, 2.0**-20, 2.0**40, 2.0**80])
def test_vectors_of_any_size(size, key, device):
    """In float32, long and short vectors are as exact as others; queries, up to a factor of 1e5."""
    q, k, v, bias = inputs(1, 2, 70, 2, 24, torch.float32)
    q[:, :, ::3] *= 2.0**-16
    k[:, :, key] *= size
    v[:, :, key] *= size
    exact = reference.pair_attention(q, k, v, bias)
    found = pair_attention(*to((q, k, v, bias), device, torch.float32)).cpu().double()
    for query in range(3):  # short and other ones
        assert_within(found[:, :, query::3], exact[:, :, query::3], BOUNDS[torch.float32])


@dtypes
@pytest.mark.parametrize("zero", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_vectors_may_be_zero(zero, precision, device):
    given = inputs(1, 2, 70, 2, 24, precision)
    for k in zero:
        given[k].zero_()
    exact = reference.pair_attention(*given)
    found = pair_attention(*to(given, device, precision))
    assert_within(found.cpu(), exact, BOUNDS[precision])


@pytest.mark.filterwarnings("ignore:All-NaN", "ignore:invalid value")  # of NumPy
def test_infinite_queries_do_not_change_others(device):
    given = to(inputs(1, 1, 40, 1, 24, torch.float32), device, torch.float32)
    expected = pair_attention(*given)
    given[0][0, 0, 7, 0, 3] = torch.inf
    found = pair_attention(*given)
    assert found[0, 0, 7].isnan().all()
    others = torch.arange(40) != 7
    assert torch.equal(found[:, :, others], expected[:, :, others])


@halves
@pytest.mark.parametrize("ending", [False, True], ids=["starting", "ending"])
@pytest.mark.parametrize("n", [1, 17, 70])
def test_triangle_attention(n, ending, precision, device):
    """The tensors are parts of one product, and the biases may be transposed."""
    heads, mask = 2 if n < 70 else 1, random_mask(1, n, n)
    given = inputs(1, n, n, heads, 32, precision)
    exact = reference.triangle_attention(*given, mask, ending=ending)
    q, k, v = joined(*given[:3], device, precision)
    bias = given[3].to(device, precision)
    other = bias.mT.contiguous().mT
    found = triangle_attention(q, k, v, bias, mask.to(device), ending=ending)
    assert_within(found.cpu(), exact, BOUNDS[precision])
    again = triangle_attention(q, k, v, other, mask.bool().to(device), ending=ending)
    assert torch.equal(found, again)


@dtypes
def test_windows(precision, device):
    """Blocks of queries attend to overlapping windows of keys, which are not copied."""
    samples, n, heads, dim, queries, keys = 3, 96, 2, 16, 32, 64
    windows, margin = n // queries, (keys - queries) // 2
    q, k, v = (random(samples, n, heads, dim, dtype=precision) for _ in "qkv")
    bias = random(windows, heads, queries, keys, dtype=precision)

    def windowed(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, 0, 0, 0, margin, margin))
        return padded.unfold(1, keys, queries).movedim(-1, 2).transpose(0, 1)

    def blocks(x: Tensor) -> Tensor:
        return x.unflatten(1, (windows, queries)).transpose(0, 1)

    mask = windowed(torch.ones_like(q))[..., 0, 0]
    exact = reference.pair_attention(blocks(q), windowed(k), windowed(v), bias, mask)
    q, k, v = (x.to(device, precision) for x in (q, k, v))
    others = windowed(k), windowed(v), bias.to(device, precision)
    found = pair_attention(blocks(q), *others, mask.to(device))
    assert_within(found.cpu(), exact, BOUNDS[precision])


def test_triangle_attention_at_nodes():
    """The reference agrees with sums over the edges of single triangles."""
    n, precision = 4, torch.float32
    q, k, v, bias = inputs(1, n, n, 1, 8, precision)
    starting = reference.triangle_attention(q, k, v, bias, scale=1.0)
    ending = reference.triangle_attention(q, k, v, bias, ending=True, scale=1.0)
    for i in range(n):
        for j in range(n):
            scores = torch.stack(
                [q[0, i, j, 0] @ k[0, i, m, 0] + bias[0, 0, j, m] for m in range(n)]
            )
            expected = sum(w * v[0, i, m, 0] for m, w in enumerate(scores.softmax(0)))
            torch.testing.assert_close(starting[0, i, j, 0], expected)
            scores = torch.stack(
                [q[0, i, j, 0] @ k[0, m, j, 0] + bias[0, 0, i, m] for m in range(n)]
            )
            expected = sum(w * v[0, m, j, 0] for m, w in enumerate(scores.softmax(0)))
            torch.testing.assert_close(ending[0, i, j, 0], expected)


def test_scales_and_biases_of_another_dtype(device):
    given = inputs(1, 2, 20, 2, 32, torch.float16)
    q, k, v = (x.to(device, torch.float16) for x in given[:3])
    bias = given[3] * (1 + 1e-4)
    exact = reference.pair_attention(*given[:3], bias, None, 0.5)
    found = pair_attention(q, k, v, bias.to(device, torch.float32), scale=0.5)
    assert_within(found.cpu(), exact, BOUNDS[torch.float16])


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("keys", [slice(7, 8), slice(None)], ids=["key", "row"])
@pytest.mark.parametrize("huge", [3e4, 88, 70, -70, -88, -3e4])
def test_huge_scores(huge, keys, masked, device):
    """Keys far above or below others, or all of a query, do not overflow or vanish."""
    given = inputs(1, 2, 100, 1, 32, torch.bfloat16)
    given[3][:, :, 5:90:2, keys] += huge
    given = tuple(to(given, "cpu", torch.bfloat16))
    mask = random_mask(1, 2, 100) if masked else None
    exact = reference.pair_attention(*(x.double() for x in given), mask)
    own = reference.pair_attention(*given, mask)
    found = pair_attention(*to((*given, mask), device, torch.bfloat16))
    assert_no_worse(found, exact, own, torch.bfloat16)
    assert_within(found.cpu(), exact, BOUNDS[torch.bfloat16])


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
@pytest.mark.parametrize("score", [60, -60])
def test_large_values_and_scores(score, device):
    """Outputs are finite even if sums of weights and values would not be."""
    q, k, v, bias = inputs(1, 1, 70, 1, 32, torch.bfloat16)
    exact = reference.pair_attention(q, k, v, bias)
    vectors = to((q, k, v * 2.0**100), device, torch.bfloat16)
    found = pair_attention(*vectors, (bias + score).to(device, torch.float32))
    assert_within(found.cpu().double() * 2.0**-100, exact, BOUNDS[torch.bfloat16])


@pytest.mark.parametrize("score", [0, 200])
def test_attention_on_blackwell(score, device, monkeypatch):
    """The largest score is subtracted from the beginning."""
    monkeypatch.setattr(hardware, "has_tensor_memory", lambda _: True)
    q, k, v, bias = inputs(1, 2, 100, 1, 32, torch.bfloat16)
    mask = random_mask(1, 2, 100)
    exact = reference.pair_attention(q, k, v, bias, mask)
    given = *to((q, k, v), device, torch.bfloat16), (bias + score).to(device, torch.float32)
    assert_within(pair_attention(*given, mask.to(device)).cpu(), exact, BOUNDS[torch.bfloat16])


@dtypes
def test_masked_keys_do_not_count(precision, device):
    """Biases, keys and values of masked tokens may be anything finite."""
    q, k, v, bias = (x.to(device, precision) for x in inputs(1, 2, 70, 1, 16, precision))
    mask = torch.ones(1, 2, 70, device=device)
    mask[:, :, 3] = mask[:, :, 60:] = 0
    expected = pair_attention(q, k, v, bias, mask)
    k[:, :, 3] = bias[..., 65] = 1e4
    v[:, :, 3] = v[:, :, 60:] = -60_000.0 if precision == torch.float16 else -1e30
    assert torch.equal(pair_attention(q, k, v, bias, mask), expected)


@pytest.mark.filterwarnings("ignore:All-NaN")  # of NumPy, which finds the largest values
@dtypes
def test_scores_that_are_not_numbers_are_seen(precision, device):
    q, k, v, bias = (x.to(device, precision) for x in inputs(1, 2, 20, 2, 16, precision))
    q[0, 1, 5, 1] = torch.nan
    found = pair_attention(q, k, v, bias).isnan()
    assert found[0, 1, 5, 1].all()
    assert found.sum() == 16


def test_strides_do_not_matter(device):
    """Axes may lie in memory in any order, and rows need no alignment."""
    given = [x.to(device, torch.float16) for x in inputs(1, 3, 20, 2, 16, torch.float16)]
    expected = pair_attention(*given)
    turned = [x.transpose(-1, 2).contiguous().transpose(-1, 2) for x in given[:3]]
    odd = [torch.nn.functional.pad(x, (1, 2))[..., 1:-2] for x in given]
    for other in ([*turned, given[3]], odd):
        assert torch.equal(pair_attention(*other), expected)


def test_empty(device):
    q = torch.empty(0, 3, 5, 2, 16, device=device).half()
    assert pair_attention(q, q, q, q.new_empty(0, 2, 5, 5)).shape == q.shape


def test_bad_arguments_are_refused(device):
    q, bias = torch.ones(1, 2, 5, 2, 16, device=device), torch.ones(1, 2, 5, 5, device=device)
    with pytest.raises(InputError, match="the same for all"):
        pair_attention(q, q.half(), q, bias)
    with pytest.raises(InputError, match="use float16, bfloat16 or float32"):
        pair_attention(q, q, q, bias.double())
    with pytest.raises(InputError, match="bias has the shape"):
        pair_attention(q, q, q, bias[:, :1])
    with pytest.raises(InputError, match="mask has the shape"):
        pair_attention(q, q, q, bias, bias[:, 0])
    wide = torch.ones(1, 2, 5, 2, 192, device=device)
    with pytest.raises(InputError, match="192 channels: use at most 128"):
        pair_attention(wide, wide, wide, bias)
