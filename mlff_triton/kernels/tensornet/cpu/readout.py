"""Energies of atoms from the last tensors, and their gradients.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.readout`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import activate_rows, activate_rows_backward
from mlff_triton.kernels.common.cpu.arrays import Array, as_array
from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.linear import map_rows
from mlff_triton.kernels.common.cpu.rows import (
    as_rows,
    normalize_rows,
    normalize_rows_backward,
    over_rows,
)
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    dot_parts,
    half_norm_gradients,
    load_parts,
    load_wide,
    scale,
    scale_parts,
    square_backward,
    store_wide,
)
from mlff_triton.kernels.common.cpu.vectors import (
    lanes_of,
    load_vector,
    spread,
    store_vector,
    total,
)
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.reference import readout as reference

Head = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor | None]]


def readout(x: Tensor, gain: Tensor, shift: Tensor, weight: SplitWeight, bias: Tensor) -> Tensor:
    """Normalize and map the invariants of the last tensors: [9, N, F] -> [N, F]."""
    rows = normalize_rows(_invariants(x), gain, shift)
    return torch.from_numpy(map_rows(rows, weight, bias))


def readout_backward(
    grad: Tensor,
    x: Tensor,
    gain: Tensor,
    weight: SplitWeight,
    delta: Tensor,
    charge_factor: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the last tensors, and of the D that the last layer added."""
    rows = normalize_rows_backward(map_rows(as_array(grad), weight), _invariants(x), gain)
    factors = rows.reshape(len(rows), 3, x.shape[2])
    grad_x, grad_delta = torch.empty_like(x), torch.empty_like(x)
    lanes = lanes_of(x.shape[2], x.element_size())
    run(_readout_bwd, x.shape[1], factors, x, delta, charge_factor, lanes, grad_x, grad_delta)
    return grad_x, grad_delta


def scalar_head(
    hidden: Tensor,
    weight1: SplitWeight,
    bias1: Tensor,
    adjoint1: SplitWeight,
    weight2: Tensor,
    bias2: Tensor,
    first: str,
    activation: str,
    deviations: SplitWeight | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the energies [N] of atoms, their gradients [N, F] and uncertainties [N or more]."""
    rows = as_array(hidden)
    u = map_rows(rows if first == "none" else activate_rows(rows, first), weight1, bias1)
    energies, slopes = np.empty(len(u), u.dtype), np.empty_like(u)
    torch.from_numpy(slopes).copy_(weight2)
    lanes = lanes_of(u.shape[1], u.itemsize)
    last = activate_rows(u, activation)
    run(_weigh, len(u), last, weight2, bias2, lanes, energies)
    grad = map_rows(activate_rows_backward(slopes, u, activation), adjoint1)
    if first != "none":
        activate_rows_backward(grad, rows, first)
    uncertainty = None
    if deviations is not None and order is not None:
        uncertainty, mapped = hidden.new_empty(len(order)), map_rows(last, deviations)
        lanes = lanes_of(mapped.shape[1], mapped.itemsize)
        run(_row_norms, len(mapped), mapped, order, lanes, uncertainty)
    return torch.from_numpy(energies), torch.from_numpy(grad), uncertainty


def gated_head(
    hidden: Tensor,
    values: Sequence[tuple[Tensor, Tensor]],
    gates: Sequence[tuple[Tensor, Tensor]],
    scale: float,
    first: str,
    deviations: SplitWeight | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute energies [N] by one network times the sigmoid of another, and gradients [N, F]."""
    return _by_blocks(
        lambda x, order: reference.gated_head(x, values, gates, scale, first, deviations, order),
        hidden,
        None if deviations is None else order,
    )


def deep_head(
    hidden: Tensor,
    maps: Sequence[tuple[Tensor, Tensor]],
    first: str,
    activation: str,
    deviations: SplitWeight | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute energies [N] by a network of any depth, and their gradients [N, F]."""
    return _by_blocks(
        lambda x, order: reference.deep_head(x, maps, first, activation, deviations, order),
        hidden,
        None if deviations is None else order,
    )


def _by_blocks(
    head: Head, hidden: Tensor, order: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Apply a head to hidden values [N, F], block by block.

    Parameters
    ----------
    head : callable
        Maps hidden values and an order of as many atoms, or None, to results of the atoms.
    hidden : [N, F]
        Output of the readout.
    order : int32 [N or more], optional
        The user's index of each atom, if there are uncertainties.
    """
    energies, grad = hidden.new_empty(len(hidden)), torch.empty_like(hidden)
    uncertainty = None if order is None else hidden.new_empty(len(order))

    def compute(first: int, last: int) -> None:
        as_given = None if order is None else torch.arange(last - first)
        energies[first:last], grad[first:last], found = head(hidden[first:last], as_given)
        if uncertainty is not None and order is not None and found is not None:
            uncertainty[order[first:last].long()] = found

    over_rows(compute, len(hidden))
    return energies, grad, uncertainty


def _invariants(x: Tensor) -> Array:
    """Return the squared norms of the parts: [9, N, F] -> [N, 3 F]."""
    given = as_array(x)
    out = np.empty((x.shape[1], 3, x.shape[2]), given.dtype)
    run(_part_norms, len(out), given, lanes_of(out.shape[2], out.itemsize), out)
    return as_rows(out)


@loop
def _weigh(values, weight, bias, lanes, energies, first, last):
    for i in range(first, last):
        sums = spread(values.dtype.type(0), lanes)
        for f in range(0, values.shape[1], len(lanes)):
            sums += load_vector(values, (i, f), lanes) * load_vector(weight, (f,), lanes)
        energies[i] = total(sums) + bias[0]


@loop
def _row_norms(rows, order, lanes, out, first, last):
    for i in range(first, last):
        sums = spread(rows.dtype.type(0), lanes)
        for f in range(0, rows.shape[1], len(lanes)):
            values = load_vector(rows, (i, f), lanes)
            sums += values * values
        out[order[i]] = math.sqrt(total(sums))


@loop
def _part_norms(x, lanes, out, first, last):
    for i in range(first, last):
        for f in range(0, x.shape[2], len(lanes)):
            c = load_wide(x, i, f, lanes)
            norms = dot_parts(c, half_norm_gradients(c))
            store_vector(out, (i, 0, f), norms[0])
            store_vector(out, (i, 1, f), norms[1])
            store_vector(out, (i, 2, f), norms[2])


@loop
def _readout_bwd(factors, x, delta, charge_factor, lanes, grad_x, grad_delta, first, last):
    half = x.dtype.type(0.5)
    for i in range(first, last):
        charge = charge_factor[i]
        for f in range(0, x.shape[2], len(lanes)):
            gradients = half_norm_gradients(load_wide(x, i, f, lanes))
            found = scale_parts(load_parts(factors, i, f, lanes), gradients)
            found = add(found, found)
            store_wide(grad_x, i, f, found)
            square = square_backward(found, load_wide(delta, i, f, lanes), half)
            store_wide(grad_delta, i, f, add(found, scale(charge, square)))
