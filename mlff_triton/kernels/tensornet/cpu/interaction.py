"""Linear maps of the three parts, and the operations that follow them.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.interaction`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import activate_rows, activate_rows_backward
from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.arrays import Array, as_array
from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.linear import bias_of_map, fewest_rows, map_parts
from mlff_triton.kernels.common.cpu.packed import transposed_weight
from mlff_triton.kernels.common.cpu.rows import as_rows
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    compose,
    compose_adjoint,
    decompose,
    decompose_adjoint,
    dot_parts,
    half_norm_gradients,
    load_parts,
    load_wide,
    matmul,
    norm,
    normalize_backward,
    scale,
    scale_parts,
    square_backward,
    store_wide,
    transpose,
)
from mlff_triton.kernels.common.cpu.vectors import lanes_of, load_vector, store_vector
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.cpu.message_product import GROUPS


def linear(x: Tensor, weight: SplitWeight, others: int = 0) -> Tensor:
    """Map each part: [9, N, in] -> [9, N + others, out], whose last rows are not written."""
    w = transposed_weight(weight.weight)
    out = x.new_empty(9, x.shape[1] + others, w.shape[2])
    given = x, w, bias_of_map(None, w), _lanes(out), out
    run(map_parts, x.shape[1], *given, fewest=fewest_rows(x, w))
    return out


def _lanes(x: Tensor) -> tuple[None, ...]:
    """Return the lanes of vectors of the channels of tensors."""
    return lanes_of(x.shape[-1], x.element_size())


def embed(
    x: Tensor, weight: SplitWeight, scales: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Map and scale each part, and normalize the tensors."""
    mapped = linear(x, weight)
    out, inverse = torch.empty_like(mapped), mapped.new_empty(mapped.shape[1:])
    factors = _factors(scales, activation)
    run(_scale_normalize, x.shape[1], mapped, factors, _lanes(mapped), out, inverse)
    return mapped, out, inverse


def update(
    p: Tensor, weight: SplitWeight, x: Tensor, charge_factor: Tensor, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Update tensors to ``X + D + (1 + 0.1 q) D D`` with ``D = W P``."""
    delta = linear(p, weight)
    out, inverse = torch.empty_like(delta), delta.new_empty(delta.shape[1:])
    run(_update, p.shape[1], delta, x, charge_factor, normalize, _lanes(x), out, inverse)
    return delta, out, inverse


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
    grad = linear(grad_delta, weight)
    _, n_atoms, channels = grad.shape
    grad_y, grad_message = torch.empty_like(grad), grad.new_empty(9, n_atoms + others, channels)
    arrays = grad, y, message, charge_factor, GROUPS[group], _lanes(y), grad_y, grad_message
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
    arrays = grad, residual, x, inverse, delta, charge_factor, _lanes(x), grad_delta
    run(_update_bwd, x.shape[1], *arrays)
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
    arrays = grad, residual, x, inverse, mapped, _factors(scales, activation), _lanes(x), sums
    run(_embed_bwd, x.shape[1], *arrays)
    activate_rows_backward(as_rows(as_array(sums)), as_rows(as_array(scales)), activation)
    return grad, sums


def _factors(scales: Tensor, activation: str) -> Array:
    """Return the factors [N, 3, F] of the parts of tensors."""
    x = as_array(scales)
    return activate_rows(as_rows(x), activation).reshape(x.shape)


def embed_input_backward(grad: Tensor, weight: SplitWeight, x: Tensor, grad_norm: Tensor) -> Tensor:
    """Compute the gradients of the sums over neighbors, through their map and norms."""
    out = linear(grad, weight)
    run(_add_norm_gradients, x.shape[1], x, grad_norm, _lanes(x), out)
    return out


@loop
def _scale_normalize(mapped, factors, lanes, out, inverse, first, last):
    one = mapped.dtype.type(1)
    for i in range(first, last):
        for f in range(0, mapped.shape[2], len(lanes)):
            m = load_wide(mapped, i, f, lanes)
            found = scale_parts(load_parts(factors, i, f, lanes), m)
            shrink = one / (norm(found) + one)
            store_vector(inverse, (i, f), shrink)
            store_wide(out, i, f, scale(shrink, found))


@loop
def _update(delta, x, charge_factor, normalize, lanes, out, inverse, first, last):
    one, half = delta.dtype.type(1), delta.dtype.type(0.5)
    for i in range(first, last):
        charge = charge_factor[i]
        for f in range(0, delta.shape[2], len(lanes)):
            d = load_wide(delta, i, f, lanes)
            full = compose(d)
            square = scale(charge, decompose(matmul(full, full), half))
            found = add(load_wide(x, i, f, lanes), add(d, square))
            shrink = one / (norm(found) + one)
            store_vector(inverse, (i, f), shrink)
            store_wide(out, i, f, scale(shrink, found) if normalize else found)


@loop
def _product_bwd(grad, y, message, charge_factor, group, lanes, grad_y, grad_message, first, last):
    one, two, half = grad.dtype.type(1), grad.dtype.type(2), grad.dtype.type(0.5)
    for i in range(first, last):
        factor = charge_factor[i] if group == 2 else two
        for f in range(0, grad.shape[2], len(lanes)):
            a = compose(load_wide(y, i, f, lanes))
            b = compose(load_wide(message, i, f, lanes))
            full = matmul(a, b)
            if group == 2:
                full = add(full, matmul(b, a))
            found = scale(factor, decompose(full, half))
            inverse = one / (norm(found) + one)
            inner = normalize_backward(load_wide(grad, i, f, lanes), found, inverse)
            g = decompose_adjoint(scale(factor, inner), half)
            at, bt = transpose(a), transpose(b)
            grad_a, grad_b = matmul(g, bt), matmul(at, g)
            if group == 2:
                grad_a, grad_b = add(grad_a, matmul(bt, g)), add(grad_b, matmul(g, at))
            store_wide(grad_y, i, f, compose_adjoint(grad_a))
            store_wide(grad_message, i, f, compose_adjoint(grad_b))


@algebra
def _input_gradient(grad, x, inverse, i, f, lanes):
    """Return the gradient of a layer's input before normalization, from that of the result."""
    shrink = load_vector(inverse, (i, f), lanes)
    grown = scale(1 / shrink, load_wide(x, i, f, lanes))
    return normalize_backward(grad, grown, shrink)


@loop
def _update_bwd(grad, residual, x, inverse, delta, charge_factor, lanes, grad_delta, first, last):
    half = grad.dtype.type(0.5)
    for i in range(first, last):
        charge = charge_factor[i]
        for f in range(0, grad.shape[2], len(lanes)):
            found = load_wide(grad, i, f, lanes)
            if i < residual.shape[1]:
                found = add(found, load_wide(residual, i, f, lanes))
            found = _input_gradient(found, x, inverse, i, f, lanes)
            store_wide(grad, i, f, found)
            square = square_backward(found, load_wide(delta, i, f, lanes), half)
            store_wide(grad_delta, i, f, add(found, scale(charge, square)))


@loop
def _embed_bwd(grad, residual, x, inverse, mapped, factors, lanes, sums, first, last):
    for i in range(first, last):
        for f in range(0, grad.shape[2], len(lanes)):
            found = load_wide(grad, i, f, lanes)
            if i < residual.shape[1]:
                found = add(found, load_wide(residual, i, f, lanes))
            found = _input_gradient(found, x, inverse, i, f, lanes)
            products = dot_parts(found, load_wide(mapped, i, f, lanes))
            store_vector(sums, (i, 0, f), products[0])
            store_vector(sums, (i, 1, f), products[1])
            store_vector(sums, (i, 2, f), products[2])
            store_wide(grad, i, f, scale_parts(load_parts(factors, i, f, lanes), found))


@loop
def _add_norm_gradients(x, grad_norm, lanes, out, first, last):
    for i in range(first, last):
        for f in range(0, x.shape[2], len(lanes)):
            g = load_vector(grad_norm, (i, f), lanes)
            gradients = scale(g + g, half_norm_gradients(load_wide(x, i, f, lanes)))
            store_wide(out, i, f, add(load_wide(out, i, f, lanes), gradients))
