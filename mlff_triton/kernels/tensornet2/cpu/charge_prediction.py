"""Prediction of charges from tensors: loops over atoms, and products of PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.reference.charge_prediction`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import activate, activate_backward
from mlff_triton.kernels.common.cpu.compilation import inlined, loop, run
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    half_norm_gradients,
    load,
    normalize_backward,
    scale,
    scale_parts,
    square_backward,
    store,
)
from mlff_triton.kernels.common.cpu.threads import own_threads
from mlff_triton.kernels.common.reference.activations import activate_derivative
from mlff_triton.kernels.tensornet.reference.scalar_network import EPS
from mlff_triton.kernels.types.charge_network import ChargeNetwork


@own_threads()
def predict_charges(
    x: Tensor, inverse: Tensor | None, network: ChargeNetwork
) -> tuple[Tensor, Tensor, Tensor]:
    """Predict charges and weights [N, 2 Q]; also return the hidden values, [N, F] twice."""
    n, n_atoms = network, x.shape[1]
    rows = x.new_empty(n_atoms, 3 * x.shape[2])
    run(_normalize, n_atoms, x, _or_ones(inverse, x), n.gain, n.shift, rows)
    z1 = torch.addmm(n.first_bias, rows, n.first.weight.T)
    z2 = torch.addmm(n.second_bias, activate(z1, n.activation), n.second.weight.T)
    predicted = torch.addmm(n.third_bias, activate(z2, n.activation), n.third.weight.T)
    return predicted[:, : n.n_outputs], z1, z2


@own_threads()
def predict_charges_backward(
    grad: Tensor, x: Tensor, inverse: Tensor | None, network: ChargeNetwork, z1: Tensor, z2: Tensor
) -> Tensor:
    """Compute the gradients [N, 3, F] of the invariants."""
    n = network
    grad_z2 = torch.mm(grad, n.third_adjoint.weight.T[: n.n_outputs])
    grad_z2 = activate_backward(grad_z2, z2, n.activation)
    grad_z1 = torch.mm(grad_z2, n.second_adjoint.weight.T)
    grad_z1 = activate_backward(grad_z1, z1, n.activation)
    rows = torch.mm(grad_z1, n.first_adjoint.weight.T)
    run(_normalize_bwd, x.shape[1], x, _or_ones(inverse, x), n.gain, rows)
    return rows.unflatten(1, (3, -1))


def tensor_gradients(
    grad: Tensor,
    residual: Tensor | None,
    x: Tensor,
    inverse: Tensor | None,
    factors: Tensor,
    delta: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Add the gradients by invariants to those of tensors; return those of D, too."""
    out = torch.empty_like(grad)
    grad_delta = out if delta is None else torch.empty_like(grad)
    options = residual is not None, inverse is not None, delta is not None
    given = grad if residual is None else residual, x, _or_ones(inverse, x), factors
    others = x if delta is None else delta, *options, out, grad_delta
    run(_tensor_gradients, x.shape[1], grad, *given, *others)
    return out, grad_delta


def scale_gradients(
    grad: Tensor, mapped: Tensor, scales: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of mapped tensors [9, N, F] and of their scales [N, 3, F]."""
    out, sums = torch.empty_like(grad), torch.empty_like(scales)
    factors = activate(scales, activation)
    run(_scale_gradients, grad.shape[1], grad, mapped, factors, out, sums)
    return out, sums.mul_(activate_derivative(scales, activation))


def _or_ones(inverse: Tensor | None, x: Tensor) -> Tensor:
    """Return the factors [N, F] of normalized tensors [9, N, F]."""
    return x.new_ones(x.shape[1:]) if inverse is None else inverse


@inlined
def _invariants(x, inverse, i, row):
    """Write the invariants of an atom to a row [3 F]; return its mean and inverse deviation."""
    one, channels = x.dtype.type(1), x.shape[2]
    total = square = x.dtype.type(0)
    for f in range(channels):
        c = scale(one / inverse[i, f], load(x, i, f))
        g = half_norm_gradients(c)
        row[f] = c[0]
        row[channels + f] = c[1] * g[1] + c[2] * g[2] + c[3] * g[3]
        row[channels + channels + f] = (
            c[4] * g[4] + c[5] * g[5] + c[6] * g[6] + c[7] * g[7] + c[8] * g[8]
        )
    for f in range(len(row)):
        total += row[f]
    mean = total / x.dtype.type(len(row))
    for f in range(len(row)):
        square += (row[f] - mean) * (row[f] - mean)
    variance = square / x.dtype.type(len(row))
    return mean, one / math.sqrt(variance + x.dtype.type(EPS))


@loop
def _normalize(x, inverse, gain, shift, out, first, last):
    """Write the normalized invariants of atoms [N, 3 F]."""
    row = np.empty(out.shape[1], x.dtype)
    for i in range(first, last):
        mean, scaled = _invariants(x, inverse, i, row)
        for f in range(len(row)):
            out[i, f] = (row[f] - mean) * scaled * gain[f] + shift[f]


@loop
def _normalize_bwd(x, inverse, gain, grad, first, last):
    """Replace gradients of normalized invariants [N, 3 F] by those of the invariants."""
    row = np.empty(grad.shape[1], x.dtype)
    for i in range(first, last):
        mean, scaled = _invariants(x, inverse, i, row)
        total = along = x.dtype.type(0)
        for f in range(len(row)):
            row[f] = (row[f] - mean) * scaled
            grad[i, f] *= gain[f]
            total += grad[i, f]
            along += grad[i, f] * row[f]
        total /= x.dtype.type(len(row))
        along /= x.dtype.type(len(row))
        for f in range(len(row)):
            grad[i, f] = (grad[i, f] - total - row[f] * along) * scaled


@loop
def _tensor_gradients(
    grad, residual, x, inverse, factors, delta, has_residual, is_normalized, has_delta,
    out, grad_delta, first, last,
):  # fmt: skip
    one, half = x.dtype.type(1), x.dtype.type(0.5)
    for i in range(first, last):
        for f in range(x.shape[2]):
            found, c = load(grad, i, f), load(x, i, f)
            if has_residual:
                found = add(found, load(residual, i, f))
            if is_normalized:
                c = scale(one / inverse[i, f], c)
                found = normalize_backward(found, c, inverse[i, f])
            slopes = half_norm_gradients(c)
            parts = half, factors[i, 1, f] + factors[i, 1, f], factors[i, 2, f] + factors[i, 2, f]
            by_norms = scale_parts(parts, slopes)
            found = add(found, (factors[i, 0, f], *by_norms[1:]))
            store(out, i, f, found)
            if has_delta:
                square = square_backward(found, load(delta, i, f), half)
                store(grad_delta, i, f, add(found, square))


@loop
def _scale_gradients(grad, mapped, factors, out, sums, first, last):
    for i in range(first, last):
        for f in range(grad.shape[2]):
            g, m = load(grad, i, f), load(mapped, i, f)
            sums[i, 0, f] = g[0] * m[0]
            sums[i, 1, f] = g[1] * m[1] + g[2] * m[2] + g[3] * m[3]
            sums[i, 2, f] = g[4] * m[4] + g[5] * m[5] + g[6] * m[6] + g[7] * m[7] + g[8] * m[8]
            parts = factors[i, 0, f], factors[i, 1, f], factors[i, 2, f]
            store(out, i, f, scale_parts(parts, g))
