"""Convolutions along sequences, compared with their reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.genomics import convolution as kernels
from mlff_triton.kernels.genomics.convolution import Plan
from mlff_triton.kernels.genomics.reference import convolution as reference
from mlff_triton.kernels.genomics.sequence_tiles import SMALL, Tile
from mlff_triton.kernels.genomics.types import Activation
from mlff_triton.testing import assert_within
from tests.kernels.genomics.rows import ROUNDING, random
from tests.support.token_cases import HALVES

SIZES = [(1, 8, 1, 8), (2, 70, 5, 24), (3, 33, 15, 72), (1, 67, 4, 136)]  # B, S, taps, channels
TILES = [SMALL, Tile(16, 64, 32, 2, 4, 2, 1), Tile(16, 128, 64, 4, 4, 2, 1)]


@pytest.fixture(params=[1, 4], ids=lambda splits: f"{splits} splits")
def split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split sums, or do not."""
    monkeypatch.setattr(Plan, "of", lambda *_: Plan(SMALL, request.param))


def half(value: Tensor | None, device: str, dtype: torch.dtype) -> Tensor | None:
    return None if value is None else value.to(device, dtype)


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kernel_matches_the_reference(size, tile, splits, dtype, device):
    torch.manual_seed(0)
    n_sequences, length, taps, channels = size
    n_out = channels + 16
    x = random(n_sequences, length, channels, dtype=dtype)
    weight = random(n_out, taps, channels, dtype=dtype) / 16
    residual = random(n_sequences, length, n_out, dtype=dtype)
    bias, scale, shift = random(n_out), random(n_out), random(n_out)
    expected = reference.convolution(
        x, weight, bias, residual=residual, activation=Activation(scale, shift)
    )
    found = kernels.launch_convolution(
        half(x, device, dtype),
        half(weight, device, dtype),
        bias.to(device, torch.float32),
        half(residual, device, dtype),
        1.0,
        Activation(scale.float().to(device), shift.float().to(device)),
        True,
        None,
        Plan(tile, splits),
    )
    for each, exact in zip(found, expected, strict=True):
        assert each.dtype == dtype
        assert_within(each.cpu(), exact, ROUNDING[dtype])


@pytest.mark.usefixtures("described", "split")
@pytest.mark.parametrize("kind", ["fewer channels", "half as many rows", "none"])
def test_residuals_are_added(kind, device):
    x, weight = random(2, 34, 16), random(40, 5, 16)
    residual = {"fewer channels": random(2, 34, 24), "half as many rows": random(2, 17, 40)}.get(
        kind
    )
    expected = reference.convolution(
        x, weight, torch.ones(40).double(), residual=residual, residual_scale=-0.5
    )
    found = kernels.convolution(
        half(x, device, torch.float16),
        half(weight, device, torch.float16),
        torch.ones(40, device=device),
        residual=half(residual, device, torch.float16),
        residual_scale=-0.5,
    )
    assert found.activated is None
    assert_within(found.rows.cpu(), expected.rows, 2.0**-10)


@pytest.mark.usefixtures("described", "split")
def test_columns_of_a_buffer_are_read_and_written(device):
    torch.manual_seed(0)
    buffer = torch.full((2, 20, 88), 7.0, dtype=torch.float16, device=device)
    sequence = random(2, 20, 4)
    windows, out = buffer[..., 24:], buffer[..., :16]
    kernels.sequence_windows(sequence.float().to(device), 15, windows)
    weight, bias = random(16, 15, 4), random(16)
    activation = Activation(torch.ones(16).double(), torch.zeros(16).double())
    wide = torch.zeros(16, 1, 64, device=device).half()
    wide[:, 0, :60] = weight.flatten(1)
    found = kernels.convolution(
        windows,
        wide,
        bias.to(device, torch.float32),
        activation=Activation(*(t.float().to(device) for t in activation)),
        with_rows=False,
        out=out,
    )
    expected = reference.convolution(sequence, weight, bias, activation=activation)
    assert found.rows is None
    assert_within(out.cpu(), expected.activated, 2.0**-10)
    assert (buffer[..., 16:24] == 7).all()


@pytest.mark.parametrize("length", [1, 5, 40])
def test_windows_match_the_reference(length, device):
    x = random(3, length, 4)
    found = torch.full((3, length, 80), torch.nan, device=device)
    expected = torch.full((3, length, 64), torch.nan, device=device)
    kernels.sequence_windows(x.float().to(device), 15, found[..., 16:])
    reference.sequence_windows(x.float().to(device), 15, expected)
    assert torch.equal(found[..., 16:], expected)
    assert found[..., :16].isnan().all()


def test_the_center_of_a_window_is_its_position():
    x = torch.arange(1.0, 9.0).view(1, 4, 2)
    out = torch.empty(1, 4, 7)
    reference.sequence_windows(x, 3, out)
    assert out[0, 0].tolist() == [0, 0, 1, 2, 3, 4, 0]
    assert out[0, 3].tolist() == [5, 6, 7, 8, 0, 0, 0]


@pytest.mark.parametrize(
    ("n_rows", "taps", "channels", "expected"),
    [
        (128, 5, 1536, (128, 128, 8)),
        (512, 5, 1408, (128, 128, 3)),
        (1024, 5, 1280, (128, 256, 3)),
        (3072, 5, 1536, (128, 128, 1)),
        (16384, 5, 768, (128, 256, 1)),
        (2048, 1, 1152, (128, 128, 1)),
    ],
)
def test_sums_of_few_rows_are_split(n_rows, taps, channels, expected, monkeypatch):
    monkeypatch.setattr(kernels.hardware, "has_large_memory", lambda _: True)
    monkeypatch.setattr(kernels.hardware, "multiprocessors", lambda _: 132)
    x = torch.empty(1, n_rows, channels, device="meta")
    tile, splits = Plan.of(x, channels, taps)
    assert (tile.rows, tile.columns, splits) == expected


def test_sums_are_not_split_on_other_gpus():
    x = torch.empty(1, 128, 1536, device="meta")
    assert Plan.of(x, 1536, 5) == (SMALL, 1)
