"""Triangle multiplication, compared with its reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.numerics.operands import takes_halves
from mlff_triton.kernels.pairs.reference import triangle_multiplication as reference
from mlff_triton.kernels.pairs.row_blocks import chunk
from mlff_triton.kernels.pairs.triangle_multiplication import Tile, triangle_multiplication_
from mlff_triton.kernels.pairs.types import TriangleWeights
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import (
    BOUNDS,
    assert_no_worse,
    dtypes,
    norm,
    pooled,
    random,
    random_map,
    spread,
    to,
)

LARGE = [(1, 33, 128, 128), (1, 9, 256, 256), (1, 65, 64, 64), (2, 17, 16, 128), (1, 65, 256, 16)]
"""Sizes that take the interpreter long."""


def weights(
    channels: int, precision: torch.dtype, *, bias: bool = True, hidden: int | None = None
) -> TriangleWeights:
    """Return random weights in float64, none of them zero, with as many hidden channels."""
    hidden = hidden or channels
    shapes = (2 * hidden, channels), (2 * hidden, channels), (channels, hidden), (channels,) * 2
    maps = (random_map(*shape, precision) for shape in shapes)
    return TriangleWeights(norm(channels, precision, bias), norm(hidden, precision), *maps)


@dtypes
@pytest.mark.parametrize("hidden", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("channels", [16, 32, 64, 128, 256])
def test_threads_load_wide_accesses_of_sums(channels, hidden, precision):
    """With fewer elements per thread, sums over channels were wrong on a GPU."""
    weight = torch.empty(channels, hidden, dtype=precision)
    tile = Tile.of_update(weight)
    elements = tile.pairs * chunk(hidden, takes_halves(weight))
    assert tile.warps >= 1
    assert elements * weight.element_size() >= 16 * 32 * tile.warps


@dtypes
@pytest.mark.parametrize("incoming", [False, True], ids=["outgoing", "incoming"])
@pytest.mark.parametrize(
    "size",
    [
        *((1, 1, 16, 16), (2, 17, 32, 32), (1, 17, 128, 128), (1, 5, 256, 256), (2, 9, 16, 128)),
        *((1, 9, 64, 128), (1, 9, 128, 32), (1, 65, 32, 64), (1, 5, 256, 16), (1, 5, 16, 256)),
        *(pytest.param(size, marks=pytest.mark.gpu) for size in LARGE),
    ],
    ids=str,
)
def test_triangle_multiplication(size, incoming, precision, device):
    """The update, which is the result less the pairs, is at least as exact as that of PyTorch.

    Hidden channels may be more or fewer than those of pairs.
    """
    batch, n, channels, hidden = size

    def compare():
        given = weights(channels, precision, hidden=hidden)
        z = random(batch, n, n, channels, dtype=precision)
        mask = (torch.rand(batch, n, n) < 0.8).double() if n > 1 else None
        update = reference.triangle_update(z, given, mask, incoming=incoming)
        rounded = (to(x, device, precision) for x in (z, given, mask))
        own = z.float() + reference.triangle_update(*rounded, incoming=incoming).cpu()
        found = z.to(device, torch.float32)
        result = triangle_multiplication_(
            found, to(given, device, precision), to(mask, device, torch.float32), incoming=incoming
        )
        assert result is found
        assert_within(found.cpu().double() - z, update, BOUNDS[precision])
        return found, z + update, own, update

    found, exact, own, update = pooled(compare, batch * n * n)
    assert_no_worse(found, exact, own, precision, scale=update)


@pytest.mark.parametrize("n", [1, 17, 70])
def test_residual_streams_in_half_precision(n, device):
    """Pairs in half precision are rounded once, after the addition."""
    precision = torch.bfloat16
    given, z = weights(16, precision, bias=False), random(1, n, n, 16, dtype=precision)
    exact = reference.triangle_multiplication_(z.clone(), given)
    found = triangle_multiplication_(z.to(device, precision), to(given, device, precision))
    assert found.dtype is precision
    assert_within(found.cpu(), exact, BOUNDS[precision])


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_results_may_go_to_another_tensor(precision, device):
    given = to(weights(16, torch.bfloat16), device, torch.bfloat16)
    z = random(2, 17, 17, 16, dtype=torch.bfloat16).to(device, precision)
    before = z.clone()
    expected = triangle_multiplication_(z.clone(), given)
    for dtype in (precision, torch.float32):
        out = torch.full_like(z, float("nan"), dtype=dtype)
        assert triangle_multiplication_(z, given, out=out) is out
        assert torch.equal(z, before)
        assert torch.equal(out.to(precision), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("incoming", [False, True], ids=["outgoing", "incoming"])
@pytest.mark.parametrize(
    ("channels", "precision"), [(256, torch.bfloat16), (128, torch.float32)], ids=str
)
def test_thousands_of_tokens(channels, precision, incoming, device):
    """The last tokens, if all others are masked, get the update that they get alone.

    Planes have more elements than fit in 32 bits.
    """
    n, last = 2901, 64
    given = to(weights(channels, precision), device, precision)
    z = torch.randn(1, n, n, channels, device=device, dtype=precision)
    mask = torch.zeros(1, n, n, device=device)
    mask[:, -last:, -last:] = 1
    few = z[:, -last:, -last:].float().contiguous()
    alone = triangle_multiplication_(few, given, mask[:, -last:, -last:], incoming=incoming)
    found = triangle_multiplication_(z, given, mask, incoming=incoming)[:, -last:, -last:]
    assert_within(found.float().cpu(), alone.cpu(), BOUNDS[precision])


def test_padding_changes_nothing(device):
    """Tokens that are masked as both edges leave the pairs of others as they are."""
    n, precision = 19, torch.float32
    given = to(weights(32, precision), device, precision)
    z = random(1, n, n, 32, dtype=precision).to(device, precision)
    mask = torch.zeros(1, n, n, device=device)
    mask[:, :13, :13] = 1
    for incoming in (False, True):
        few = z[:, :13, :13].contiguous()
        expected = triangle_multiplication_(few, given, incoming=incoming)
        found = triangle_multiplication_(z.clone(), given, mask, incoming=incoming)
        assert_within(found[:, :13, :13].cpu(), expected.cpu(), 1e-6)


def test_sums_over_triangles():
    """The reference agrees with sums over the third corner."""
    n, given = 4, weights(16, torch.float32)
    z = torch.randn(1, n, n, 16).double()
    x = torch.nn.functional.layer_norm(z, (16,), *given.norm_in)
    a, b = ((x @ given.project_in.T) * (x @ given.gate_in.T).sigmoid()).chunk(2, -1)
    for incoming in (False, True):
        found = reference.triangle_multiplication_(z.clone(), given, incoming=incoming)
        for i, j in ((0, 3), (2, 1)):
            corners = [(a[0, k, i], b[0, k, j]) for k in range(n)]
            if not incoming:
                corners = [(a[0, i, k], b[0, j, k]) for k in range(n)]
            total = sum(first * second for first, second in corners)
            total = torch.nn.functional.layer_norm(total, (16,), *given.norm_out)
            update = (total @ given.project_out.T) * (x[0, i, j] @ given.gate_out.T).sigmoid()
            torch.testing.assert_close(found[0, i, j], z[0, i, j] + update)


def test_pairs_that_are_not_numbers_are_seen(device):
    z = torch.randn(1, 5, 5, 16, device=device)
    z[0, 1, 2, 3] = torch.nan
    found = triangle_multiplication_(z, to(weights(16, torch.float32), device, torch.float32))
    assert found[0, 1].isnan().all()
    assert not found[0, 0, 0].isnan().any()


def test_strides_of_weights_do_not_matter(device):
    given = to(weights(16, torch.float32), device, torch.float32)
    z = torch.randn(1, 5, 5, 16, device=device)
    expected = triangle_multiplication_(z.clone(), given)
    assert torch.equal(triangle_multiplication_(z.clone(), spread(given)), expected)


def test_empty(device):
    given = to(weights(16, torch.float32), device, torch.float32)
    assert not triangle_multiplication_(torch.empty(1, 0, 0, 16, device=device), given).numel()


def test_bad_arguments_are_refused(device):
    given = to(weights(16, torch.float16), device, torch.float16)
    z = torch.ones(1, 5, 5, 16, device=device)
    with pytest.raises(InputError, match="24 channels: use 16, 32"):
        triangle_multiplication_(torch.ones(1, 5, 5, 24, device=device), given)
    with pytest.raises(InputError, match="z has the shape"):
        triangle_multiplication_(z[:, :4], given)
    with pytest.raises(InputError, match="must be contiguous"):
        triangle_multiplication_(z.transpose(1, 2), given)
    with pytest.raises(InputError, match="the weights are"):
        triangle_multiplication_(z.bfloat16(), given)
    with pytest.raises(InputError, match="mask has the shape"):
        triangle_multiplication_(z, given, z[..., :4, 0])
    with pytest.raises(InputError, match="gate_out has the shape"):
        triangle_multiplication_(z, given._replace(gate_out=given.gate_in))
    with pytest.raises(InputError, match="project_in has the shape"):
        triangle_multiplication_(z, given._replace(project_in=given.gate_out))
    wide = given._replace(project_out=given.project_out.repeat(1, 3))
    with pytest.raises(InputError, match="48 hidden channels: use 16, 32"):
        triangle_multiplication_(z, wide)
    wide = given._replace(project_out=given.project_out.repeat(1, 2))
    with pytest.raises(InputError, match="project_in has the shape"):
        triangle_multiplication_(z, wide)
    double = (x.repeat(2, 1) for x in (given.project_in, given.gate_in))
    wide = wide._replace(**dict(zip(("project_in", "gate_in"), double, strict=True)))
    with pytest.raises(InputError, match="the weight of norm_out has the shape"):
        triangle_multiplication_(z, wide)
    with pytest.raises(InputError, match="out has the shape"):
        triangle_multiplication_(z, given, out=z[:, :4])
    with pytest.raises(InputError, match="out is updated in place and must be contiguous"):
        triangle_multiplication_(z, given, out=z.transpose(1, 2))
    short = given.norm_out[0], given.norm_out[1][:4], 1e-5
    with pytest.raises(InputError, match="the bias of norm_out has the shape"):
        triangle_multiplication_(z, given._replace(norm_out=short))
