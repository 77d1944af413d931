"""Projections of normalized rows and gated updates, compared with PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from mlff_triton.errors import InputError
from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.gated_update import gated_update_
from mlff_triton.kernels.pairs.projections import Projection, project_rows
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import BOUNDS, dtypes, norm, random, random_map, to


def random_rows(*shape: int, dtype: torch.dtype, turned: bool) -> Tensor:
    """Return random rows in float64, with transposed axes if ``turned``."""
    x = random(*shape, dtype=dtype)
    return x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x


@dtypes
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("size", [(1, 1, 1, 16), (2, 3, 19, 40), (1, 5, 7, 256)], ids=str)
def test_projections(size, turned, precision, device):
    """Maps of different widths are written to different layouts, with a bias, scale and mask."""
    batch, rows, length, channels = size
    x, layer = random_rows(*size, dtype=precision, turned=turned), norm(channels, precision)
    wide, narrow = random_map(48, channels, precision), random_map(3, channels, precision)
    bias, mask = random(48, dtype=precision), (torch.rand(size[:3]) < 0.7).double()
    y = layer_norm(x, (channels,), *layer)
    exact = 0.5 * mask[..., None] * linear(y, wide, bias), mask[..., None] * linear(y, narrow)
    first = torch.empty(batch, rows, 6, length, 8, dtype=precision, device=device)
    second = torch.empty(batch, 3, length, rows, dtype=torch.float32, device=device)
    wide, bias, narrow = (w.to(device, precision) for w in (wide, bias, narrow))
    maps = [
        Projection(wide, first.transpose(2, 3), bias, 0.5),
        Projection(narrow, second.permute(0, 3, 2, 1)[..., None]),
    ]
    project_rows(
        x.to(device, precision), to(layer, device, precision), maps, mask.to(device).bool()
    )
    for found, expected in zip(maps, exact, strict=True):
        assert_within(found.out.flatten(3).cpu(), expected, BOUNDS[precision])


@pytest.mark.parametrize("channels", [16, 64])
@pytest.mark.parametrize("dim", [1, 4, 12, 32])
def test_results_may_be_split(channels, dim, device):
    """The vectors of heads have units of their own."""
    x, layer = random(2, 3, 19, channels, dtype=torch.float32), norm(channels, torch.float32)
    weight = random_map(3 * dim, channels, torch.float32)
    weight[:dim] *= 1e-12
    x, layer, weight = to((x, layer, weight), device, torch.float32)
    out = torch.full((2, 2, 3, 19, 3, dim), torch.nan, dtype=torch.float16, device=device)
    unit = torch.full((2, 3, 3, 19), torch.nan, device=device).transpose(2, 3)
    whole = torch.empty(2, 3, 19, 3, dim, device=device)
    project_rows(x, layer, [Projection(weight, out, unit=unit), Projection(weight, whole)])
    found = SplitOperand(*out, unit).joined()
    for head in range(3):
        exact = whole[..., head, :].double()
        assert_within(found[..., head, :].cpu(), exact.cpu(), BOUNDS[torch.float32])


def test_bad_halves_are_refused(device):
    x, weight = torch.ones(1, 3, 5, 16, device=device), torch.ones(4, 16, device=device)
    layer = to(norm(16, torch.float32), device, torch.float32)
    out, unit = x.new_empty(2, 1, 3, 5, 1, 4), x.new_empty(1, 3, 5, 1)
    for message, bad in {
        "2 parts and no unit": Projection(weight, out.half()),
        "use two halves in float16": Projection(weight, out, unit=unit),
        "a unit in float32": Projection(weight, out.half(), unit=unit.half()),
        "unit 0 has the shape": Projection(weight, out.half(), unit=unit[:, :2]),
    }.items():
        with pytest.raises(InputError, match=message):
            project_rows(x, layer, [bad])


@dtypes
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("size", [(1, 1, 1, 16), (2, 3, 19, 40), (1, 5, 7, 256)], ids=str)
def test_gated_update(size, turned, precision, device):
    """Attention outputs may have any layout."""
    *shape, channels = size
    x, layer = random_rows(*size, dtype=precision, turned=turned), norm(channels, precision)
    y = random(shape[0], shape[1], 3, shape[2], 8, dtype=precision).transpose(2, 3)
    gate, out = random_map(24, channels, precision), random_map(channels, 24, precision)
    gates = linear(layer_norm(x, (channels,), *layer), gate).sigmoid()
    update = linear(y.flatten(3) * gates, out)
    found = x.to(device, torch.float32)
    given = to((y, layer, gate, out), device, precision)
    assert gated_update_(found, *given) is found
    assert_within(found.cpu().double() - x, update, BOUNDS[precision])


def test_rows_weights_and_outputs_of_thousands(device):
    """In float32, large values are as exact as others."""
    x, (scale, shift, eps) = torch.randn(1, 1, 9, 64), norm(64, torch.float32)
    layer = 1e3 * scale.float(), 1e3 * shift.float(), eps
    weight, gate, out = (random_map(64, 64, torch.float32).float() for _ in range(3))
    gate *= 1e-3  # so that gates are neither open nor shut
    y = layer_norm(x.double(), (64,), layer[0].double(), layer[1].double(), eps)
    found = torch.empty(1, 1, 9, 1, 64, device=device)
    moved = to(layer, device, torch.float32)
    project_rows(x.to(device), moved, [Projection(1e4 * weight.to(device), found)])
    assert_within(found.flatten(3).cpu(), linear(y, 1e4 * weight.double()), BOUNDS[torch.float32])
    attended = 1e5 * torch.randn(1, 1, 9, 2, 32)
    update = linear(attended.double().flatten(3) * linear(y, gate.double()).sigmoid(), out.double())
    rows = x.clone().to(device)
    gated_update_(rows, attended.to(device), moved, gate.to(device), out.to(device))
    assert_within(rows.cpu().double(), x + update, BOUNDS[torch.float32])


def test_bad_arguments_are_refused(device):
    x, weight = torch.ones(1, 2, 5, 16, device=device), torch.ones(8, 16, device=device)
    layer = torch.ones(16, device=device), None, 1e-5
    out = torch.empty(1, 2, 5, 2, 4, device=device)
    with pytest.raises(InputError, match="weight 0 has the shape"):
        project_rows(x, layer, [Projection(weight[:4], out)])
    with pytest.raises(InputError, match="out 0 has the shape"):
        project_rows(x, layer, [Projection(weight, out[:, :1])])
    with pytest.raises(InputError, match="bias 0 has the shape"):
        project_rows(x, layer, [Projection(weight, out, weight[0])])
    with pytest.raises(InputError, match="channels of x must be contiguous"):
        project_rows(x.repeat_interleave(2, -1)[..., ::2], layer, [Projection(weight, out)])
    with pytest.raises(InputError, match="use float32"):
        project_rows(x.half(), layer, [Projection(weight, out)])
    with pytest.raises(InputError, match="1024 channels: use at most 512"):
        project_rows(torch.ones(1, 1, 1, 1024, device=device), layer, [Projection(weight, out)])
    with pytest.raises(InputError, match="out has the shape"):
        gated_update_(x, out, layer, weight, weight)
    with pytest.raises(InputError, match="y has the shape"):
        gated_update_(x, out[:, :1], layer, weight, weight.T)
