from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.transformer.token_linear import token_linear
from mlff_triton.kernels.transformer.wide_linear import Tile, fits, launch_wide_linear, wide_linear
from tests.support.token_cases import (
    HALVES,
    assert_rows,
    layer_of,
    live_count,
    random_layer,
    random_rotary,
    random_rows,
    rotary_on,
    truth,
)

TILE = 128  # rows written together

SIZES = [  # T, live, N, K
    (1, 1, 128, 64),
    (130, 130, 256, 128),
    (300, 130, 128, 128),
    (300, 128, 256, 64),
    (1300, 1200, 256, 64),
    (300, 140, 328, 72),  # the last tiles extend beyond the last row and column
]


TILES = {
    "small": Tile(TILE, 128, 8, 4, 1),
    "large": Tile(TILE, 256, 8, 3, 1),
    "two programs": Tile(TILE, 128, 4, 3, 2),
}  # some of them for more rows than the tests have
all_tiles = pytest.mark.parametrize("tile", TILES.values(), ids=TILES)


def assert_tiles(found, exact, half, live):
    """Compare live rows with float64; tiles without a live row must still hold NaN."""
    assert found.dtype is half
    assert found[-(-live // TILE) * TILE :].isnan().all()
    assert_rows(found[:live], exact[:live], half)


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matches_the_reference(size, half, device):
    n_rows, live, n_out, n_in = size
    x, layer = random_rows(n_rows, n_in, half, live), random_layer(n_out, n_in, half)
    found = wide_linear(*(t.to(device) for t in (x, *layer)), live_count(live, device))
    assert_tiles(found, truth(x, layer), half, live)


@all_tiles
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_activations(activation, half, tile, device):
    x, layer = random_rows(200, 64, half, 140), random_layer(256, 64, half)
    inputs = *(t.to(device) for t in (x, *layer)), live_count(140, device)
    found = launch_wide_linear(*inputs, activation, None, tile)
    assert_tiles(found, truth(x, layer, activation=activation), half, 140)


@all_tiles
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize(("dim", "columns"), [(16, 256), (24, 48), (24, 144), (64, 128), (64, 192)])
def test_rotary(dim, columns, half, tile, device):
    """Rotated columns end at the end of a tile, or in the middle of one."""
    x, layer = random_rows(200, 64, half, 140), random_layer(256, 64, half)
    rotary = random_rotary(200, columns, dim, half)
    inputs = *(t.to(device) for t in (x, *layer)), live_count(140, device)
    found = launch_wide_linear(*inputs, "none", rotary_on(device, rotary), tile)
    assert_tiles(found, truth(x, layer, rotary=rotary), half, 140)


def test_no_live_rows(device):
    x, layer = torch.randn(130, 64).half(), random_layer(128, 64, torch.float16)
    assert wide_linear(*(t.to(device) for t in (x, *layer)), live_count(0, device)).isnan().all()


def test_agrees_with_small_tiles(device):
    """`token_linear` and `wide_linear` compute the same."""
    x, layer = random_rows(130, 128, torch.float16), random_layer(128, 128, torch.float16)
    given, count = x.to(device), live_count(130, device)
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
