from __future__ import annotations

import pytest
import torch
import triton
from torch import Tensor
from torch.nn import functional

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES
from mlff_triton.kernels.common.reference.activations import ACTIVATIONS
from mlff_triton.kernels.transformer.reference import token_linear as reference
from mlff_triton.kernels.transformer.reference.token_norm import token_moments as exact_moments
from mlff_triton.kernels.transformer.token_linear import (
    Moments,
    Residual,
    TokenLinear,
    token_linear,
)
from mlff_triton.kernels.transformer.token_norm import token_moments
from mlff_triton.testing import assert_close
from tests.support.token_cases import (
    DTYPES,
    HALVES,
    assert_rows,
    doubled,
    layer_of,
    live_count,
    random_layer,
    random_rotary,
    random_rows,
    rotary_on,
    truth,
)

SIZES = [  # T, live, N, K
    (1, 1, 33, 20),
    (63, 63, 320, 33),
    (130, 77, 33, 320),
    (130, 130, 70, 40),
    (1030, 700, 70, 40),
]
EPS = 0.01


def random_norm(channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    weight, bias = torch.randn(2, channels).to(dtype)
    return weight, bias


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matches_the_reference(size, dtype, device):
    n_rows, live, n_out, n_in = size
    x, layer = random_rows(n_rows, n_in, dtype, live), random_layer(n_out, n_in, dtype)
    found, sums = token_linear(x.to(device), layer_of(device, *layer), live_count(live, device))
    assert sums is None
    assert_rows(found, truth(x, layer), dtype, live)


def test_all_rows_live_unless_told(device, dtype):
    x, layer = random_rows(63, 20, dtype), random_layer(33, 20, dtype)
    found, _ = token_linear(x.to(device), layer_of(device, *layer))
    assert_rows(found, truth(x, layer), dtype)


def test_results_may_be_more_exact_than_rows(device):
    """Sums are float32 until they are rounded to the dtype of the result."""
    x, layer = random_rows(40, 30, torch.float16), random_layer(33, 30, torch.float16)
    found, _ = token_linear(x.to(device), layer_of(device, *layer), dtype=torch.float32)
    assert found.dtype is torch.float32
    assert_rows(found, truth(x, layer), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, dtype, device):
    x, layer = random_rows(40, 30, dtype), random_layer(33, 30, dtype)
    found, _ = token_linear(x.to(device), layer_of(device, *layer), activation=activation)
    assert_rows(found, truth(x, layer, activation=activation), dtype)


def activated(x: Tensor, device: str, activation: str) -> Tensor:
    """Return an activation function of single numbers."""
    one = layer_of(device, torch.ones(1, 1, dtype=x.dtype), torch.zeros(1, dtype=x.dtype))
    return token_linear(x[:, None].to(device), one, activation=activation).x[:, 0].cpu()


def approximate_gelu(x: Tensor, device: str) -> Tensor:
    """Return the GELU for half precision, not rounded to it."""
    return activated(x, device, "gelu_half")


def test_gelu_in_float32(device):
    """Inputs have few bits, so that the product before the activation is exact."""
    x = torch.linspace(-12, 12, 4001).half().float()
    x = torch.cat([x, torch.tensor([-(2.0**99), -(2.0**-99), 2.0**-99, 2.0**99])])
    exact = functional.gelu(x.double())
    off = (activated(x, device, "gelu") - exact).abs()
    assert (off <= 1e-7 + 1.2e-7 * exact.abs()).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_keep_what_is_not_a_number(activation, device, dtype):
    assert activated(torch.tensor([1.0, torch.nan], dtype=dtype), device, activation)[1].isnan()


def test_gelu_for_half_precision(device, dtype):
    """The error is far below float16 rounding, 1.4e-4 on average for numbers of about 1."""
    x = torch.linspace(-12, 12, 4001, dtype=dtype)
    off = (approximate_gelu(x, device) - functional.gelu(x.double())).abs()
    assert off.max() <= 5.4e-5
    normal = torch.exp(-x.double().square() / 2)
    assert ((normal * off.square()).sum() / normal.sum()).sqrt() < 6e-6


def test_gelu_for_half_precision_of_large_and_small_numbers(device, dtype):
    x = torch.tensor([-1e4, -50, -7, -1e-3, 0, 1e-3, 7, 50, 1e4], dtype=dtype)
    exact = functional.gelu(x.double())
    assert ((approximate_gelu(x, device) - exact).abs() <= 1e-9 + 1e-6 * exact.abs()).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_moments_normalize_the_next_layer(size, dtype, device):
    """One layer returns moments, and the next one contains a normalization."""
    n_rows, live, n_out, n_in = size
    x, layer = random_rows(n_rows, n_in, dtype, live), random_layer(n_out, n_in, dtype)
    second, norm = random_layer(45, n_out, dtype), random_norm(n_out, dtype)
    count = live_count(live, device)
    y, sums = token_linear(x.to(device), layer_of(device, *layer), count, with_moments=True)
    assert_rows(y, truth(x, layer), dtype, live)

    expected = exact_moments(doubled(y))[:, 0]
    for found, exact in zip(sums.sum(1), expected, strict=True):
        assert_rows(found[:, None], exact[:, None], COMPUTE_DTYPES[dtype], live, order=1)

    moments = Moments(sums, EPS)
    z, _ = token_linear(y, layer_of(device, *second, norm), count, moments=moments)
    assert_rows(z, truth(y, second, (*norm, EPS)), dtype, live, order=1)


def test_moments_belong_to_parts_of_the_columns(device, dtype):
    x, layer = random_rows(20, 30, dtype), random_layer(70, 30, dtype)
    y, sums = token_linear(x.to(device), layer_of(device, *layer), with_moments=True)
    n_parts = sums.shape[1]
    assert n_parts > 1
    columns = triton.next_power_of_2(triton.cdiv(70, n_parts))
    parts = doubled(y).split(columns, 1)
    exact = torch.cat([exact_moments(part) for part in parts], 1)
    assert_close(sums, exact, 1, dtype)


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_normalization_of_rows_far_from_zero(half, device):
    """Row sums are those of the rounded weights, so that the mean cancels exactly."""
    x, layer, norm = torch.randn(40, 96), random_layer(33, 96, half), random_norm(96, half)
    x = (x + 8).to(half)
    sums = token_moments(x.to(device), live_count(40, device))
    found, _ = token_linear(
        x.to(device), layer_of(device, *layer, norm), moments=Moments(sums, EPS)
    )
    assert_rows(found, truth(x, layer, (*norm, EPS)), half)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("normalized", [False, True])
def test_residual(normalized, size, dtype, device):
    n_rows, live, n_out, n_in = size
    x, layer = random_rows(n_rows, n_in, dtype, live), random_layer(n_out, n_in, dtype)
    rows, count = random_rows(n_rows, n_out, dtype, live), live_count(live, device)
    residual, norm = Residual(rows.to(device)), None
    if normalized:
        norm = random_norm(n_out, dtype)
        moments = Moments(token_moments(residual.rows, count), EPS)
        residual = Residual(residual.rows, moments, *(t.to(device) for t in norm))
    found, _ = token_linear(x.to(device), layer_of(device, *layer), count, residual=residual)
    norm = norm and (*norm, EPS)
    exact = truth(x, layer, residual=rows, residual_norm=norm)
    assert_rows(found, exact, dtype, live, order=int(normalized))


def test_everything_at_once(device, dtype):
    """Combine two normalizations whose moments have different numbers of parts with new moments."""
    x, rows, live = random_rows(70, 96, dtype, 50), random_rows(70, 80, dtype, 50), 50
    layer, norm, other = random_layer(80, 96, dtype), random_norm(96, dtype), random_norm(80, dtype)
    count = live_count(live, device)
    parts = exact_moments(x.double())[:, 0] / 3
    sums = torch.stack([parts] * 3, 1).to(device, dtype)
    of_rows = token_moments(rows.to(device), count)
    found, found_sums = token_linear(
        x.to(device),
        layer_of(device, *layer, norm),
        count,
        moments=Moments(sums, EPS),
        activation="gelu",
        residual=Residual(rows.to(device), Moments(of_rows, 0.1), *(t.to(device) for t in other)),
        with_moments=True,
    )
    given = {"residual": rows, "residual_norm": (*other, 0.1), "activation": "gelu"}
    assert_rows(found, truth(x, layer, (*norm, EPS), **given), dtype, live, order=1)
    expected = exact_moments(doubled(found))[:, 0, :live]
    assert_close(found_sums.sum(1)[:, :live], expected, 1, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("n_rows", "live", "dim"),
    [(1, 1, 16), (63, 50, 16), (63, 50, 24), (63, 63, 64), (1030, 999, 24)],
)
def test_rotary(n_rows, live, dim, dtype, device):
    """Queries and keys are rotated, values are not."""
    x, layer = random_rows(n_rows, 40, dtype, live), random_layer(6 * dim, 40, dtype)
    rotary = random_rotary(n_rows, 4 * dim, dim, dtype)
    found, _ = token_linear(
        x.to(device),
        layer_of(device, *layer),
        live_count(live, device),
        rotary=rotary_on(device, rotary),
    )
    assert_rows(found, truth(x, layer, rotary=rotary), dtype, live)


@pytest.mark.parametrize("n_rows", [0, 3])
def test_no_rows(n_rows, device):
    x, layer = torch.randn(n_rows, 20), random_layer(33, 20, torch.float32)
    count = live_count(0, device)
    y, sums = token_linear(x.to(device), layer_of(device, *layer), count, with_moments=True)
    assert y.shape == (n_rows, 33)
    assert sums.shape == (2, 2, n_rows)
    assert y.isnan().all()
    assert sums.isnan().all()


def test_layers_may_be_of_another_dtype_than_weights():
    """The weight of the normalization is multiplied in before rounding."""
    layer, norm = random_layer(33, 20, torch.float32), random_norm(20, torch.float32)
    folded = TokenLinear.of(*layer, norm, torch.float16)
    assert torch.equal(folded.weight, (layer[0].double() * norm[0].double()).half())
    assert torch.equal(folded.row_sum, folded.weight.double().sum(1).float())
    assert folded.bias.dtype is torch.float16


@pytest.mark.parametrize("normalized", [False, True])
def test_weights_may_be_strided(normalized, device, dtype):
    x, (weight, bias) = random_rows(9, 20, dtype), random_layer(33, 20, dtype)
    norm = random_norm(20, dtype) if normalized else None
    layer = layer_of(device, weight.T.contiguous().T, bias[:, None].repeat(1, 2)[:, 0], norm)
    moments = Moments(token_moments(x.to(device), live_count(9, device)), EPS)
    found, _ = token_linear(x.to(device), layer, moments=moments if normalized else None)
    exact = truth(x, (weight, bias), norm and (*norm, EPS))
    assert_rows(found, exact, dtype, order=int(normalized))


def test_refuses_moments_without_a_normalization_and_the_reverse(device):
    x, layer = random_rows(9, 20, torch.float32).to(device), random_layer(33, 20, torch.float32)
    moments = Moments(token_moments(x, None), EPS)
    plain, folded = layer_of(device, *layer), layer_of(device, *layer, random_norm(20, x.dtype))
    with pytest.raises(InputError, match="contains no normalization: pass no moments"):
        token_linear(x, plain, moments=moments)
    with pytest.raises(InputError, match="contains a normalization: pass the moments of its rows"):
        token_linear(x, folded)


def test_derivatives_of_the_reference():
    shapes = (3, 4), (6, 4), (6,), (4,), (4,), (3, 6), (6,), (6,)
    inputs = tuple(torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    rotary = random_rotary(3, 4, 2, torch.float64)

    def layer(x: Tensor, weight: Tensor, bias: Tensor, *others: Tensor) -> Tensor:
        norm, residual, other = (*others[:2], EPS), others[2], (*others[3:], EPS)
        options = {"residual": residual, "residual_norm": other, "rotary": rotary}
        return reference.token_linear(x, weight, bias, norm, activation="gelu", **options)

    assert torch.autograd.gradcheck(layer, inputs)
