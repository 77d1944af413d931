"""Linear maps of the three parts and the operations that follow them, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet.interaction`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from mlff_triton.kernels.common.reference.activations import activate, activate_derivative
from mlff_triton.kernels.common.reference.tensors import (
    compose,
    compose_adjoint,
    decompose,
    decompose_adjoint,
    dot_parts,
    inverse_norm,
    map_parts,
    matmul,
    norm_gradients,
    normalize_backward,
    scale_parts,
    square_backward,
)
from mlff_triton.kernels.numerics.split import SplitWeight


def linear(x: Tensor, weight: SplitWeight, others: int = 0) -> Tensor:
    """Map each part, and append ``others`` rows of zeros."""
    return _append(map_parts(x, weight), others)


def _append(x: Tensor, others: int) -> Tensor:
    """Append rows of zeros to x[9, N, F]."""
    return functional.pad(x, (0, 0, 0, others)) if others else x


def embed(
    x: Tensor, weight: SplitWeight, scales: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Map and scale each part, and normalize the tensors."""
    mapped = map_parts(x, weight)
    out = scale_parts(activate(scales, activation).transpose(0, 1), mapped)
    inverse = inverse_norm(out)
    return mapped, out * inverse, inverse


def update(
    p: Tensor, weight: SplitWeight, x: Tensor, charge_factor: Tensor, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Update tensors to ``X + D + (1 + 0.1 q) D D`` with ``D = W P``."""
    delta = map_parts(p, weight)
    n_atoms = p.shape[1]
    full = compose(delta)
    square = charge_factor[:n_atoms, None] * decompose(matmul(full, full))
    out = x[:, :n_atoms] + delta + square
    inverse = inverse_norm(out)
    return delta, out * inverse if normalize else out, inverse


def product_backward(
    grad_delta: Tensor,
    weight: SplitWeight,
    y: Tensor,
    message: Tensor,
    charge_factor: Tensor,
    group: str,
    others: int = 0,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of both factors of the product, given those of D."""
    grad = map_parts(grad_delta, weight)
    n_atoms = message.shape[1]
    a, b = compose(y[:, :n_atoms]), compose(message)
    even = group == "O(3)"
    product = decompose(matmul(a, b) + matmul(b, a) if even else matmul(a, b))
    factor = charge_factor[:n_atoms, None] if even else 2.0
    product = factor * product
    g = decompose_adjoint(factor * normalize_backward(grad, product, inverse_norm(product)))
    at, bt = a.transpose(0, 1), b.transpose(0, 1)
    grad_a, grad_b = matmul(g, bt), matmul(at, g)
    if even:
        grad_a, grad_b = grad_a + matmul(bt, g), grad_b + matmul(g, at)
    return compose_adjoint(grad_a), _append(compose_adjoint(grad_b), others)


def update_backward(
    grad_y: Tensor,
    weight: SplitWeight,
    residual: Tensor,
    x: Tensor,
    inverse: Tensor,
    delta: Tensor,
    charge_factor: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a layer's input, and of the D of the layer before."""
    grad = _input_gradient(grad_y, weight, residual, x, inverse)
    return grad, grad + charge_factor[: x.shape[1], None] * square_backward(grad, delta)


def embed_backward(
    grad_y: Tensor,
    weight: SplitWeight,
    residual: Tensor,
    x: Tensor,
    inverse: Tensor,
    mapped: Tensor,
    scales: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the embedding, as `update_backward` does those of a layer."""
    grad = _input_gradient(grad_y, weight, residual, x, inverse)
    factors = activate(scales, activation).transpose(0, 1)
    sums = dot_parts(grad, mapped).transpose(0, 1)
    return scale_parts(factors, grad), sums * activate_derivative(scales, activation)


def embed_input_backward(grad: Tensor, weight: SplitWeight, x: Tensor, grad_norm: Tensor) -> Tensor:
    """Compute the gradients of the sums over neighbors, through their map and norms."""
    return map_parts(grad, weight) + grad_norm * norm_gradients(x)


def _input_gradient(
    grad_y: Tensor, weight: SplitWeight, residual: Tensor, x: Tensor, inverse: Tensor
) -> Tensor:
    """Return the gradient of a layer's input before normalization, [9, N, F]."""
    grad = map_parts(grad_y, weight)
    grad[:, : residual.shape[1]] += residual  # zero for all others
    return normalize_backward(grad, x / inverse, inverse)
