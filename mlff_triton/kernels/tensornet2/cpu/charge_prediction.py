"""Prediction of charges from tensors.

Arguments and results are those of `mlff_triton.kernels.tensornet2.reference.charge_prediction`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import (
    activate,
    activate_rows,
    activate_rows_backward,
)
from mlff_triton.kernels.common.cpu.arrays import Array
from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.linear import map_rows
from mlff_triton.kernels.common.cpu.rows import as_rows, normalize_rows, normalize_rows_backward
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    dot_parts,
    half_norm_gradients,
    load_parts,
    load_wide,
    normalize_backward,
    scale,
    scale_parts,
    square_backward,
    store_wide,
)
from mlff_triton.kernels.common.cpu.vectors import lanes_of, load_vector, store_vector
from mlff_triton.kernels.common.reference.activations import activate_derivative
from mlff_triton.kernels.types.charge_network import ChargeNetwork


def predict_charges(
    x: Tensor, inverse: Tensor | None, network: ChargeNetwork
) -> tuple[Tensor, Tensor, Tensor]:
    """Predict charges and weights [N, 2 Q]; also return the hidden values, [N, F] twice."""
    n = network
    rows = normalize_rows(_invariants(x, inverse), n.gain, n.shift)
    z1 = map_rows(rows, n.first, n.first_bias)
    z2 = map_rows(activate_rows(z1, n.activation), n.second, n.second_bias)
    found = map_rows(activate_rows(z2, n.activation), n.third, n.third_bias)
    predicted = torch.from_numpy(found)[:, : n.n_outputs]
    return predicted, torch.from_numpy(z1), torch.from_numpy(z2)


def predict_charges_backward(
    grad: Tensor, x: Tensor, inverse: Tensor | None, network: ChargeNetwork, z1: Tensor, z2: Tensor
) -> Tensor:
    """Compute the gradients [N, 3, F] of the invariants."""
    n, (n_atoms, n_outputs) = network, grad.shape
    given = np.zeros((n_atoms, len(n.third_bias)), z1.numpy().dtype)
    given[:, :n_outputs] = grad.numpy()
    grad_z2 = activate_rows_backward(map_rows(given, n.third_adjoint), z2.numpy(), n.activation)
    grad_z1 = activate_rows_backward(map_rows(grad_z2, n.second_adjoint), z1.numpy(), n.activation)
    rows = map_rows(grad_z1, n.first_adjoint)
    rows = normalize_rows_backward(rows, _invariants(x, inverse), n.gain)
    return torch.from_numpy(rows.reshape(n_atoms, 3, x.shape[2]))


def tensor_gradients(
    grad: Tensor,
    residual: Tensor | None,
    x: Tensor,
    inverse: Tensor | None,
    factors: Tensor,
    delta: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Add the gradients by invariants to those of tensors; return those of D, too."""
    out, lanes = torch.empty_like(grad), lanes_of(x.shape[2], x.element_size())
    grad_delta = out if delta is None else torch.empty_like(grad)
    options = residual is not None, inverse is not None, delta is not None
    given = grad if residual is None else residual, x, _or_ones(inverse, x), factors
    others = x if delta is None else delta, *options, lanes, out, grad_delta
    run(_tensor_gradients, x.shape[1], grad, *given, *others)
    return out, grad_delta


def scale_gradients(
    grad: Tensor, mapped: Tensor, scales: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of mapped tensors [9, N, F] and of their scales [N, 3, F]."""
    out, sums = torch.empty_like(grad), torch.empty_like(scales)
    factors, lanes = activate(scales, activation), lanes_of(grad.shape[2], grad.element_size())
    run(_scale_gradients, grad.shape[1], grad, mapped, factors, lanes, out, sums)
    return out, sums.mul_(activate_derivative(scales, activation))


def _invariants(x: Tensor, inverse: Tensor | None) -> Array:
    """Return I and the squared norms of the other parts: [9, N, F] -> [N, 3 F]."""
    out, lanes = x.new_empty(x.shape[1], 3, x.shape[2]), lanes_of(x.shape[2], x.element_size())
    run(_write_invariants, x.shape[1], x, _or_ones(inverse, x), lanes, out)
    return as_rows(out.numpy())


def _or_ones(inverse: Tensor | None, x: Tensor) -> Tensor:
    """Return the factors [N, F] of normalized tensors [9, N, F]."""
    return x.new_ones(x.shape[1:]) if inverse is None else inverse


@loop
def _write_invariants(x, inverse, lanes, out, first, last):
    one = x.dtype.type(1)
    for i in range(first, last):
        for f in range(0, x.shape[2], len(lanes)):
            c = scale(one / load_vector(inverse, (i, f), lanes), load_wide(x, i, f, lanes))
            _, vector, tensor = dot_parts(c, half_norm_gradients(c))
            store_vector(out, (i, 0, f), c[0])
            store_vector(out, (i, 1, f), vector)
            store_vector(out, (i, 2, f), tensor)


@loop
def _tensor_gradients(
    grad, residual, x, inverse, factors, delta, has_residual, is_normalized, has_delta, lanes,
    out, grad_delta, first, last,
):  # fmt: skip
    one, half = x.dtype.type(1), x.dtype.type(0.5)
    for i in range(first, last):
        for f in range(0, x.shape[2], len(lanes)):
            found, c = load_wide(grad, i, f, lanes), load_wide(x, i, f, lanes)
            if has_residual:
                found = add(found, load_wide(residual, i, f, lanes))
            if is_normalized:
                scaled = load_vector(inverse, (i, f), lanes)
                c = scale(one / scaled, c)
                found = normalize_backward(found, c, scaled)
            by_trace, by_vector, by_tensor = load_parts(factors, i, f, lanes)
            parts = by_trace, by_vector + by_vector, by_tensor + by_tensor
            slopes = half_norm_gradients(c)
            found = add(found, (by_trace, *scale_parts(parts, slopes)[1:]))
            store_wide(out, i, f, found)
            if has_delta:
                square = square_backward(found, load_wide(delta, i, f, lanes), half)
                store_wide(grad_delta, i, f, add(found, square))


@loop
def _scale_gradients(grad, mapped, factors, lanes, out, sums, first, last):
    for i in range(first, last):
        for f in range(0, grad.shape[2], len(lanes)):
            g = load_wide(grad, i, f, lanes)
            i0, a0, s0 = dot_parts(g, load_wide(mapped, i, f, lanes))
            store_vector(sums, (i, 0, f), i0)
            store_vector(sums, (i, 1, f), a0)
            store_vector(sums, (i, 2, f), s0)
            store_wide(out, i, f, scale_parts(load_parts(factors, i, f, lanes), g))
