"""Invariants of the last tensors and their gradients; small networks are those of the reference.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.readout`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    half_norm_gradients,
    load,
    scale,
    scale_parts,
    square_backward,
    store,
)
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.reference.scalar_network import (
    normalize_rows,
    normalize_rows_backward,
)


def readout(x: Tensor, gain: Tensor, shift: Tensor, weight: SplitWeight, bias: Tensor) -> Tensor:
    """Normalize and map the invariants of the last tensors: [9, N, F] -> [N, F]."""
    normalized, _ = normalize_rows(_invariants(x))
    return torch.addmm(bias, normalized * gain + shift, weight.weight.T)


def readout_backward(
    grad: Tensor,
    x: Tensor,
    gain: Tensor,
    weight: SplitWeight,
    delta: Tensor,
    charge_factor: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the last tensors, and of the D that the last layer added."""
    factors = normalize_rows_backward((grad @ weight.weight.T) * gain, _invariants(x))
    grad_x, grad_delta = torch.empty_like(x), torch.empty_like(x)
    arrays = factors.unflatten(1, (3, -1)), x, delta, charge_factor, grad_x, grad_delta
    run(_readout_bwd, x.shape[1], *arrays)
    return grad_x, grad_delta


def _invariants(x: Tensor) -> Tensor:
    """Return the squared norms of the parts: [9, N, F] -> [N, 3 F]."""
    out = x.new_empty(x.shape[1], 3, x.shape[2])
    run(_part_norms, x.shape[1], x, out)
    return out.flatten(1)


@loop
def _part_norms(x, out, first, last):
    for i in range(first, last):
        for f in range(x.shape[2]):
            c = load(x, i, f)
            g = half_norm_gradients(c)
            out[i, 0, f] = c[0] * g[0]
            out[i, 1, f] = c[1] * g[1] + c[2] * g[2] + c[3] * g[3]
            out[i, 2, f] = c[4] * g[4] + c[5] * g[5] + c[6] * g[6] + c[7] * g[7] + c[8] * g[8]


@loop
def _readout_bwd(factors, x, delta, charge_factor, grad_x, grad_delta, first, last):
    half = x.dtype.type(0.5)
    for i in range(first, last):
        charge = charge_factor[i]
        for f in range(x.shape[2]):
            parts = factors[i, 0, f], factors[i, 1, f], factors[i, 2, f]
            found = scale_parts(parts, half_norm_gradients(load(x, i, f)))
            found = add(found, found)
            store(grad_x, i, f, found)
            square = square_backward(found, load(delta, i, f), half)
            store(grad_delta, i, f, add(found, scale(charge, square)))
