from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.reference.activations import ACTIVATIONS, activate
from mlff_triton.kernels.ops.linear import linear
from mlff_triton.kernels.ops.reference import linear as reference
from mlff_triton.testing import assert_close
from tests.support.operators import assert_matches

BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        not torch.cuda.is_available(), reason="Triton's interpreter multiplies bfloat16 as integers"
    ),
)
SIZES = [(1, 1, 1), (63, 33, 8), (500, 8, 33), (130, 130, 70), (5, 100, 300)]  # M, N, K


def random_inputs(
    n_rows: int, n_out: int, n_in: int, device: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random rows, weight and bias."""
    generator = torch.Generator().manual_seed(n_rows + n_out + n_in)
    shapes = (n_rows, n_in), (n_out, n_in), (n_out,)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return tuple(t.to(device, dtype) for t in (x, weight / n_in**0.5, bias))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_matches_the_reference(size, activation, device, dtype):
    x, weight, bias = random_inputs(*size, device, dtype)
    assert_matches(linear, reference.linear, x, weight, bias, activation)


@pytest.mark.parametrize("size", [(0, 8, 8), (63, 33, 8), (500, 8, 33), (5, 100, 300)], ids=str)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_halves_match_the_reference(size, activation, device):
    x, weight, bias = random_inputs(*size, device, torch.float32)
    scale = torch.linspace(0.5, 2, len(x), device=device)[:, None]
    assert_matches(
        lambda *t: linear(*t, precision="halves"),
        reference.linear,
        x,
        weight,
        bias,
        activation,
        scale,
    )


@pytest.mark.parametrize("precision", ["ieee", "halves"])
@pytest.mark.parametrize("n_rows", [0, 17, 63])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_first_rows(n_rows, activation, precision, device, dtype):
    x, weight, bias = random_inputs(63, 33, 40, device, dtype)
    scale = torch.linspace(0.5, 2, len(x), device=device)[:, None].to(dtype)
    rows = torch.tensor(n_rows, device=device)
    for epilogue in ((bias, activation), (bias, activation, scale)):
        assert_matches(
            partial(linear, precision=precision, rows=rows),
            partial(reference.linear, rows=rows),
            x,
            weight,
            *epilogue,
        )


def test_further_rows_are_not_read(device):
    x, weight, _ = random_inputs(70, 8, 8, device, torch.float32)
    rows = torch.tensor(5, dtype=torch.int32, device=device)
    x[5:] = torch.nan
    y = linear(x, weight, activation="silu", precision="halves", rows=rows)
    assert y[:5].isfinite().all()
    assert not y[5:].any()


class Calls(TorchDispatchMode):
    """Names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


def test_weights_get_gradients_only_where_these_are_needed(device):
    x, weight, bias = (t.requires_grad_() for t in random_inputs(5, 4, 3, device))
    energy = linear(x, weight, bias, "silu").sum()
    with Calls() as first:
        (forces,) = torch.autograd.grad(energy, x, create_graph=True)
    with Calls() as second:
        forces.square().sum().backward(inputs=[weight])
    assert "mlff_triton.linear_backward_weight.default" not in first.names
    assert "mlff_triton.linear_backward_weight.default" in second.names


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1e20])
def test_halves_have_the_range_of_float32(size, device):
    x, weight, _ = random_inputs(20, 30, 40, device, torch.float32)
    x, weight = (size * x).requires_grad_(), (weight / size).requires_grad_()
    y = linear(x, weight, precision="halves")
    grad = 1e-10 * torch.randn_like(y)
    found = y, *torch.autograd.grad(y, (x, weight), grad)
    exact = [x.double() @ weight.double().T, grad.double() @ weight.double()]
    exact.append(grad.double().T @ x.double())
    for actual, expected in zip(found, exact, strict=True):
        unit = expected.abs().max()
        assert_close(actual.double() / unit, expected / unit, 0, torch.float32)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_halves_keep_values_that_are_not_finite(device):
    x, weight, _ = random_inputs(3, 4, 5, device, torch.float32)
    x[0, 0], x[1, 0] = torch.inf, torch.nan
    y = linear(x, weight, precision="halves")
    assert not y[:2].isfinite().any()
    assert y[2].isfinite().all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, device, dtype):
    x, weight, bias = random_inputs(63, 20, 30, device, dtype)
    assert_matches(linear, reference.linear, x, weight, bias, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_large_numbers(activation, device, dtype):
    x = torch.tensor([[-1e4], [-50.0], [50.0], [1e4]], dtype=dtype, device=device)
    x.requires_grad_()
    exact = x.detach().double().requires_grad_()
    weight = torch.ones(1, 1, dtype=dtype, device=device)
    y, y_exact = linear(x, weight, activation=activation), activate(exact, activation)
    assert_close(y, y_exact, 0, dtype)
    (grad,), (grad_exact,) = (
        torch.autograd.grad(f.sum(), t) for f, t in ((y, x), (y_exact, exact))
    )
    assert_close(grad, grad_exact, 1, dtype, floor=1.0)


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize(
    ("scale_shape", "residual_shape"),
    [((40, 30), None), (None, (40, 30)), ((40, 1), (30,)), ((), (40, 30)), ((30,), (1, 1))],
)
def test_scale_and_residual(activation, scale_shape, residual_shape, device, dtype):
    x, weight, bias = random_inputs(40, 30, 20, device, dtype)
    scale, residual = (
        None if shape is None else torch.randn(shape, dtype=dtype, device=device)
        for shape in (scale_shape, residual_shape)
    )
    assert_matches(linear, reference.linear, x, weight, bias, activation, scale, residual)


def test_leading_axes_and_strides(device):
    x, weight, _ = random_inputs(24, 30, 20, device)
    x, weight = x.view(2, 3, 4, 20).transpose(0, 1), weight.T.contiguous().T
    residual = torch.randn(3, 1, 4, 30, dtype=x.dtype, device=device)
    assert_matches(linear, reference.linear, x, weight, None, None, None, residual)


def test_long_sums_of_weight_gradients_are_split(device, dtype):
    x, weight, bias = random_inputs(3000, 8, 16, device, dtype)
    weight.requires_grad_()
    seed = torch.rand(3000, 8, dtype=dtype, device=device)
    (grad,) = torch.autograd.grad(linear(x.abs(), weight, bias), weight, seed)
    assert_close(grad, seed.double().T @ x.double().abs(), 1, dtype)


@pytest.mark.parametrize("half", [torch.float16, BFLOAT16])
def test_half_precision(half, device):
    inputs = [t.requires_grad_() for t in random_inputs(70, 40, 100, device, half)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    y, y_exact = linear(*inputs, "silu"), reference.linear(*exact, "silu")
    assert y.dtype is half
    for actual, expected in zip(
        (y, *torch.autograd.grad(y.sum(), inputs)),
        (y_exact, *torch.autograd.grad(y_exact.sum(), exact)),
        strict=True,
    ):
        assert (actual - expected).abs().max() < 4 * torch.finfo(half).eps * expected.abs().max()


@pytest.mark.parametrize("size", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_nothing_to_do(size, device):
    x, weight, bias = (t.requires_grad_() for t in random_inputs(*size, device))
    y = linear(x, weight.nan_to_num(), bias, "silu")
    expected = reference.linear(x, weight.nan_to_num(), bias, "silu")
    assert_close(y, expected, 0)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert not x.grad.isnan().any()
    assert not weight.grad.isnan().any()


def test_keeps_nothing_without_gradients(device):
    x, weight, bias = random_inputs(5, 6, 7, device)
    expected = linear(x, weight, bias, "silu")
    with torch.no_grad():
        assert torch.equal(linear(x, weight.requires_grad_(), bias, "silu"), expected)


def test_derivatives_of_the_reference():
    x, weight, bias = (t.requires_grad_() for t in random_inputs(2, 3, 2, "cpu"))
    scale = torch.randn(2, 1, dtype=torch.float64, requires_grad=True)

    def function(*tensors: Tensor) -> Tensor:
        return reference.linear(*tensors[:3], "mish", tensors[3])

    assert torch.autograd.gradcheck(function, (x, weight, bias, scale))
    assert torch.autograd.gradgradcheck(function, (x, weight, bias, scale))


def test_registered_completely(device):
    x, weight, bias = (t.requires_grad_() for t in random_inputs(3, 4, 5, device, torch.float32))
    operators = torch.ops.mlff_triton
    arguments = (x, weight, bias, None, None, None, "silu", "ieee", True)
    torch.library.opcheck(operators.linear.default, arguments)
    transposed = weight.detach().T.requires_grad_()
    torch.library.opcheck(operators.linear_backward_product.default, (x, transposed, None, "ieee"))
    other = torch.ones(3, 6, device=device, requires_grad=True)
    for precision in ("ieee", "halves"):
        torch.library.opcheck(operators.linear_backward_weight.default, (x, other, None, precision))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 5)}, r"x has the shape \[2, 5\] instead of \[..., 4\]"),
        ({"weight": torch.ones(4)}, r"weight has the shape \[4\] instead of \[N, K\]"),
        ({"bias": torch.ones(4)}, r"bias has the shape \[4\] instead of \[3\]"),
        ({"bias": torch.ones(3).double()}, "bias is torch.float64.* the same for all"),
        ({"activation": "selu"}, "activation='selu' is unknown: use one of none, silu"),
        ({"precision": "fp8"}, "precision='fp8' is unknown: use one of ieee, tf32x3, tf32, halves"),
        ({"scale": torch.ones(3, 3)}, r"scale has the shape \[3, 3\], which does not broadcast"),
        ({"rows": torch.ones(2).long()}, r"rows has the shape \[2\] instead of \[\]"),
        ({"rows": torch.tensor(1.0)}, "rows is torch.float32: use int64 or int32"),
        (
            {"rows": torch.tensor(1), "residual": torch.ones(3)},
            "rows cannot be used with a residual",
        ),
        ({"residual": torch.ones(1, 2, 3)}, r"residual .* does not broadcast to \[2, 3\]"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    inputs = {"x": torch.ones(2, 4), "weight": torch.ones(3, 4)} | change
    on_device = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    with pytest.raises(InputError, match=message):
        linear(**on_device)
