from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.transformer import wide_linear as module
from mlff_triton.kernels.transformer.token_linear import token_linear
from mlff_triton.kernels.transformer.wide_linear import fits, wide_linear
from tests.support.token_cases import (
    HALVES,
    assert_rows,
    counted,
    layer_of,
    on,
    random_layer,
    random_rotary,
    random_rows,
    truth,
)

TILE = 128  # rows that are written together

SIZES = [  # T, live, N, K
    (1, 1, 128, 64),
    (130, 130, 256, 128),
    (300, 130, 128, 128),
    (300, 128, 256, 64),
    (1300, 1200, 256, 64),
    (300, 140, 328, 72),  # tiles that end beyond the last column
]


TILES = {"small": (TILE, 128, 8, 4, 1), "large": (TILE, 256, 8, 3, 1), "two": (TILE, 128, 4, 3, 2)}


@pytest.fixture(params=TILES)
def _tiles(request, monkeypatch):
    """Some are for more rows than are computed here."""
    monkeypatch.setattr(module, "_tile", lambda *_: module._Tile(*TILES[request.param]))


def assert_tiles(found, exact, half, live):
    """Live rows are the truth's, and tiles without any stay as they were."""
    assert found.dtype is half
    assert found[-(-live // TILE) * TILE :].isnan().all()
    assert_rows(found[:live], exact[:live], half)


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matches_the_reference(size, half, device):
    n_rows, live, n_out, n_in = size
    x, layer = random_rows(n_rows, n_in, half, live), random_layer(n_out, n_in, half)
    found = wide_linear(*(t.to(device) for t in (x, *layer)), counted(live, device))
    assert_tiles(found, truth(x, layer), half, live)


@pytest.mark.usefixtures("_tiles")
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_activations(activation, half, device):
    x, layer = random_rows(200, 64, half, 140), random_layer(256, 64, half)
    count = counted(140, device)
    found = wide_linear(*(t.to(device) for t in (x, *layer)), count, activation=activation)
    assert_tiles(found, truth(x, layer, activation=activation), half, 140)


@pytest.mark.usefixtures("_tiles")
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize(("dim", "columns"), [(16, 256), (24, 48), (24, 144), (64, 128), (64, 192)])
def test_rotary(dim, columns, half, device):
    """Turned columns end with a tile, or in the middle of one."""
    x, layer = random_rows(200, 64, half, 140), random_layer(256, 64, half)
    rotary = random_rotary(200, columns, dim, half)
    count = counted(140, device)
    found = wide_linear(*(t.to(device) for t in (x, *layer)), count, rotary=on(device, rotary))
    assert_tiles(found, truth(x, layer, rotary=rotary), half, 140)


def test_no_live_rows(device):
    x, layer = torch.randn(130, 64).half(), random_layer(128, 64, torch.float16)
    assert wide_linear(*(t.to(device) for t in (x, *layer)), counted(0, device)).isnan().all()


def test_agrees_with_small_tiles(device):
    """Which of the two ways a layer takes is a matter of speed."""
    x, layer = random_rows(130, 128, torch.float16), random_layer(128, 128, torch.float16)
    given, count = x.to(device), counted(130, device)
    wide = wide_linear(given, *(t.to(device) for t in layer), count, activation="gelu")
    small, _ = token_linear(given, layer_of(device, *layer), count, activation="gelu")
    assert_rows(wide, small.cpu().double(), torch.float16)


@pytest.mark.parametrize(
    ("dtype", "n_out", "n_in", "expected"),
    [
        (torch.float16, 128, 64, True),
        (torch.bfloat16, 3840, 1280, True),
        (torch.float32, 128, 64, False),
        (torch.float16, 960, 320, True),
        (torch.float16, 33, 64, False),
        (torch.float16, 128, 33, False),
    ],
)
def test_what_fits(dtype, n_out, n_in, expected):
    assert (
        fits(torch.zeros(1, n_in, dtype=dtype), torch.zeros(n_out, n_in, dtype=dtype)) == expected
    )
