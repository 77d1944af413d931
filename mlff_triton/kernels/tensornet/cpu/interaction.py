"""Linear maps of the three parts, by PyTorch, and the operations that follow them.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.interaction`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    compose,
    compose_adjoint,
    decompose,
    decompose_adjoint,
    half_norm_gradients,
    load,
    matmul,
    norm,
    normalize_backward,
    scale,
    scale_parts,
    square_backward,
    store,
    transpose,
)
from mlff_triton.kernels.common.reference.activations import activate, activate_derivative
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.cpu.message_product import GROUPS

PARTS = (slice(1), slice(1, 4), slice(4, 9))


def linear(x: Tensor, weight: SplitWeight) -> Tensor:
    """Map each part: [9, N, in] -> [9, N, out]."""
    w = weight.weight
    out = x.new_empty(9, x.shape[1], w.shape[1])
    for k, part in enumerate(PARTS):
        torch.mm(x[part].flatten(0, 1), w[k].T, out=out[part].flatten(0, 1))
    return out


def embed(
    x: Tensor, weight: SplitWeight, scales: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Map and scale each part, and normalize the tensors."""
    mapped = linear(x, weight)
    out, inverse = torch.empty_like(mapped), torch.empty_like(mapped[0])
    run(_scale_normalize, x.shape[1], mapped, activate(scales, activation), out, inverse)
    return mapped, out, inverse


def update(
    p: Tensor, weight: SplitWeight, x: Tensor, charge_factor: Tensor, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Update tensors to ``X + D + (1 + 0.1 q) D D`` with ``D = W P``."""
    delta = linear(p, weight)
    out, inverse = torch.empty_like(delta), torch.empty_like(delta[0])
    run(_update, p.shape[1], delta, x, charge_factor, normalize, out, inverse)
    return delta, out, inverse


def product_backward(
    grad_delta: Tensor,
    weight: SplitWeight,
    y: Tensor,
    message: Tensor,
    charge_factor: Tensor,
    group: str,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of both factors of the product, given those of D."""
    grad = linear(grad_delta, weight)
    grad_y, grad_message = torch.empty_like(grad), torch.empty_like(grad)
    arrays = grad, y, message, charge_factor, GROUPS[group], grad_y, grad_message
    run(_product_bwd, message.shape[1], *arrays)
    return grad_y, grad_message


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
    grad = linear(grad_y, weight)
    grad_delta = torch.empty_like(grad)
    run(_update_bwd, x.shape[1], grad, residual, x, inverse, delta, charge_factor, grad_delta)
    return grad, grad_delta


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
    grad = linear(grad_y, weight)
    sums = torch.empty_like(scales)
    factors = activate(scales, activation)
    run(_embed_bwd, x.shape[1], grad, residual, x, inverse, mapped, factors, sums)
    return grad, sums.mul_(activate_derivative(scales, activation))


def embed_input_backward(grad: Tensor, weight: SplitWeight, x: Tensor, grad_norm: Tensor) -> Tensor:
    """Compute the gradients of the sums over neighbors, through their map and norms."""
    out = linear(grad, weight)
    run(_add_norm_gradients, x.shape[1], x, grad_norm, out)
    return out


@loop
def _scale_normalize(mapped, factors, out, inverse, first, last):
    one = mapped.dtype.type(1)
    for i in range(first, last):
        for f in range(mapped.shape[2]):
            parts = factors[i, 0, f], factors[i, 1, f], factors[i, 2, f]
            found = scale_parts(parts, load(mapped, i, f))
            inverse[i, f] = one / (norm(found) + one)
            store(out, i, f, scale(inverse[i, f], found))


@loop
def _update(delta, x, charge_factor, normalize, out, inverse, first, last):
    number = delta.dtype.type
    one, half = number(1), number(0.5)
    for i in range(first, last):
        charge = charge_factor[i]
        for f in range(delta.shape[2]):
            d = load(delta, i, f)
            full = compose(d)
            square = scale(charge, decompose(matmul(full, full), half))
            found = add(load(x, i, f), add(d, square))
            found_inverse = one / (norm(found) + one)
            inverse[i, f] = found_inverse
            store(out, i, f, scale(found_inverse if normalize else one, found))


@loop
def _product_bwd(grad, y, message, charge_factor, group, grad_y, grad_message, first, last):
    number = grad.dtype.type
    one, half = number(1), number(0.5)
    for i in range(first, last):
        factor = charge_factor[i] if group == 2 else number(2)
        for f in range(grad.shape[2]):
            a, b = compose(load(y, i, f)), compose(load(message, i, f))
            at, bt = transpose(a), transpose(b)
            product = matmul(a, b)
            if group == 2:
                product = add(product, matmul(b, a))
            found = scale(factor, decompose(product, half))
            inverse = one / (norm(found) + one)
            inner = scale(factor, normalize_backward(load(grad, i, f), found, inverse))
            g = decompose_adjoint(inner, half)
            grad_a, grad_b = matmul(g, bt), matmul(at, g)
            if group == 2:
                grad_a, grad_b = add(grad_a, matmul(bt, g)), add(grad_b, matmul(g, at))
            store(grad_y, i, f, compose_adjoint(grad_a))
            store(grad_message, i, f, compose_adjoint(grad_b))


@loop
def _update_bwd(grad, residual, x, inverse, delta, charge_factor, grad_delta, first, last):
    half = grad.dtype.type(0.5)
    for i in range(first, last):
        charge = charge_factor[i]
        has_residual = i < residual.shape[1]
        for f in range(grad.shape[2]):
            found = load(grad, i, f)
            if has_residual:
                found = add(found, load(residual, i, f))
            scaled = inverse[i, f]
            found = normalize_backward(
                found, scale(grad.dtype.type(1) / scaled, load(x, i, f)), scaled
            )
            store(grad, i, f, found)
            square = square_backward(found, load(delta, i, f), half)
            store(grad_delta, i, f, add(found, scale(charge, square)))


@loop
def _embed_bwd(grad, residual, x, inverse, mapped, factors, sums, first, last):
    for i in range(first, last):
        has_residual = i < residual.shape[1]
        for f in range(grad.shape[2]):
            found = load(grad, i, f)
            if has_residual:
                found = add(found, load(residual, i, f))
            scaled = inverse[i, f]
            found = normalize_backward(
                found, scale(grad.dtype.type(1) / scaled, load(x, i, f)), scaled
            )
            m = load(mapped, i, f)
            sums[i, 0, f] = found[0] * m[0]
            sums[i, 1, f] = found[1] * m[1] + found[2] * m[2] + found[3] * m[3]
            sums[i, 2, f] = (
                found[4] * m[4]
                + found[5] * m[5]
                + found[6] * m[6]
                + found[7] * m[7]
                + found[8] * m[8]
            )
            parts = factors[i, 0, f], factors[i, 1, f], factors[i, 2, f]
            store(grad, i, f, scale_parts(parts, found))


@loop
def _add_norm_gradients(x, grad_norm, out, first, last):
    for i in range(first, last):
        for f in range(x.shape[2]):
            twice = grad_norm[i, f] + grad_norm[i, f]
            gradients = scale(twice, half_norm_gradients(load(x, i, f)))
            store(out, i, f, add(load(out, i, f), gradients))
