"""Activations of rows: loops for SiLU, and PyTorch's functions for others."""

from __future__ import annotations

import numpy as np
import torch

from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.arrays import Array
from mlff_triton.kernels.common.cpu.compilation import loop, run, run_part
from mlff_triton.kernels.common.cpu.exponential import exponential
from mlff_triton.kernels.common.cpu.rows import over_rows
from mlff_triton.kernels.common.cpu.vectors import lanes_of, load_vector, store_vector
from mlff_triton.kernels.common.reference.activations import activate, activate_derivative

__all__ = [
    "SILU",
    "activate",
    "activate_rows",
    "activate_rows_backward",
    "activate_with_slope",
    "silu_with_slope",
]

SILU = ("silu", "swish")


def activate_rows(x: Array, activation: str) -> Array:
    """Activate rows [N, C]."""
    out = np.empty_like(x)
    if activation in SILU:
        run(_silu, len(x), x, lanes_of(x.shape[1], x.itemsize), out)
        return out
    given, found = torch.from_numpy(x), torch.from_numpy(out)

    def compute(first: int, last: int) -> None:
        found[first:last] = activate(given[first:last], activation)

    over_rows(compute, len(x))
    return out


def activate_rows_backward(grad: Array, x: Array, activation: str) -> Array:
    """Overwrite gradients by activated rows [N, C] with those by the rows, and return them."""
    if activation in SILU:
        run(_silu_bwd, len(x), x, lanes_of(x.shape[1], x.itemsize), grad)
        return grad
    given, found = torch.from_numpy(x), torch.from_numpy(grad)

    def compute(first: int, last: int) -> None:
        found[first:last] *= activate_derivative(given[first:last], activation)

    over_rows(compute, len(x))
    return grad


@algebra
def silu_with_slope(x):
    """Return SiLU of a vector, and its derivative."""
    gate = 1 / (1 + exponential(-x))
    value = x * gate
    return value, gate + value * (1 - gate)


@loop
def _silu(x, lanes, out, first, last):
    for i in range(first, last):
        for f in range(0, x.shape[1], len(lanes)):
            store_vector(out, (i, f), silu_with_slope(load_vector(x, (i, f), lanes))[0])


@loop
def _silu_bwd(x, lanes, grad, first, last):
    for i in range(first, last):
        for f in range(0, x.shape[1], len(lanes)):
            slope = silu_with_slope(load_vector(x, (i, f), lanes))[1]
            store_vector(grad, (i, f), load_vector(grad, (i, f), lanes) * slope)


def activate_with_slope(x: Array, activation: str, slope: Array) -> None:
    """Activate rows [N, C] in place, in this thread, and write the derivatives to ``slope``."""
    if activation in SILU:
        run_part(_silu_with_slope, 0, len(x), lanes_of(x.shape[1], x.itemsize), x, slope)
    else:
        found = torch.from_numpy(x)
        torch.from_numpy(slope).copy_(activate_derivative(found, activation))
        found.copy_(activate(found, activation))


@loop
def _silu_with_slope(lanes, x, slope, first, last):
    for i in range(first, last):
        for f in range(0, x.shape[1], len(lanes)):
            value, derivative = silu_with_slope(load_vector(x, (i, f), lanes))
            store_vector(x, (i, f), value)
            store_vector(slope, (i, f), derivative)
