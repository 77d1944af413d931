from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.activations import activate
from mlff_triton.kernels.ops.activation_slopes import activation_slopes
from mlff_triton.testing import assert_close
from tests.support.operators import is_float

OPTIONS = {  # with a scale, with other gradients, with gradients of the scale
    "activation": (False, False, False),
    "more": (False, True, False),
    "scale": (True, False, True),
    "scale and more": (True, True, True),
    "scale without gradients": (True, True, False),
}


def random_inputs(
    option: str, n_rows: int, n_columns: int, device: str, dtype: torch.dtype
) -> tuple[Tensor | None, ...]:
    """Return gradients, values, the scale and other gradients, None if there are none."""
    generator = torch.Generator().manual_seed(n_rows)
    with_scale, with_more, _ = OPTIONS[option]
    shapes = (n_rows, n_columns), (n_rows, n_columns), (n_rows,), (n_rows, n_columns)
    grad, z, scale, more = (torch.randn(s, generator=generator).to(device, dtype) for s in shapes)
    return grad, z, scale if with_scale else None, more if with_more else None


def reference(
    grad: Tensor,
    z: Tensor,
    scale: Tensor | None,
    more: Tensor | None,
    rows: Tensor | None,
    activation: str,
    with_scale: bool,
) -> tuple[Tensor, ...]:
    """Compute `activation_slopes` by differentiating the activation."""
    assert rows is None
    scales = z.new_ones(len(z)) if scale is None else scale
    pull_back = torch.func.vjp(lambda z, s: activate(z, activation) * s[:, None], z, scales)[1]
    slopes, grad_scale = pull_back(grad)
    slopes = slopes if more is None else slopes + more
    return (slopes, grad_scale) if with_scale else (slopes,)


def derivatives(function: object, inputs: tuple[object, ...], dtype: torch.dtype) -> list[Tensor]:
    """Return outputs and the gradients of their sum with random weights."""
    inputs = tuple(t.detach().to(dtype).requires_grad_() if is_float(t) else t for t in inputs)
    outputs = [t for t in function(*inputs) if t.numel()]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=generator).to(t) for t in outputs]
    leaves = [t for t in inputs if is_float(t)]
    if not outputs:
        return []
    gradients = torch.autograd.grad(outputs, leaves, weights, materialize_grads=True)
    return [*outputs, *gradients]


def assert_same(inputs: tuple[object, ...], dtype: torch.dtype) -> None:
    found, exact = (
        derivatives(function, inputs, kind)
        for function, kind in ((activation_slopes, dtype), (reference, torch.float64))
    )
    for actual, expected in zip(found, exact, strict=True):
        assert_close(actual, expected, 1, dtype)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("activation", ["silu", "none", "tanh"])
def test_agrees_with_the_reference(option, activation, device, dtype):
    inputs = random_inputs(option, 21, 150, device, dtype)
    assert_same((*inputs, None, activation, OPTIONS[option][2]), dtype)


@pytest.mark.parametrize(("n_rows", "n_columns"), [(0, 8), (500, 1), (1, 128)])
def test_sizes(n_rows, n_columns, device, dtype):
    inputs = random_inputs("scale and more", n_rows, n_columns, device, dtype)
    assert_same((*inputs, None, "silu", True), dtype)


def test_registered_completely(device):
    inputs = random_inputs("scale and more", 5, 8, device, torch.float64)
    inputs = [t.requires_grad_() for t in inputs]
    torch.library.opcheck(activation_slopes, (*inputs, None, "silu", True))
    operator = torch.ops.mlff_triton.activation_slopes_backward.default
    grad, z, scale, _ = (t.detach() for t in inputs)
    torch.library.opcheck(operator, (grad, scale, grad, z, scale, None, "silu", True))
