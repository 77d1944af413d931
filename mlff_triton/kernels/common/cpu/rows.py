"""Rows of atoms: layer norms, and functions of PyTorch block by block."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from mlff_triton.kernels.common.cpu.arrays import Array
from mlff_triton.kernels.common.cpu.compilation import inlined, loop, run
from mlff_triton.kernels.common.cpu.recording import perform
from mlff_triton.kernels.common.cpu.threads import in_parallel
from mlff_triton.kernels.common.cpu.vectors import (
    lanes_of,
    load_vector,
    spread,
    store_vector,
    total,
)

ROWS = 128
"""Rows of a block, whose intermediate results stay in the cache of a core."""
EPS = 1e-5


def over_rows(function: Callable[[int, int], None], n_rows: int) -> None:
    """Call a function with the first row of each block and the row after its last one."""
    blocks = [(first, min(first + ROWS, n_rows)) for first in range(0, n_rows, ROWS)]
    perform(in_parallel, function, blocks)


def as_rows(x: Array) -> Array:
    """Return values [N, ...] as rows [N, C]."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def normalize_rows(x: Array, gain: Tensor, shift: Tensor) -> Array:
    """Apply a layer norm to rows [N, C]."""
    out = np.empty_like(x)
    run(_normalize, len(x), x, gain, shift, lanes_of(x.shape[1], x.itemsize), out)
    return out


def normalize_rows_backward(grad: Array, x: Array, gain: Tensor) -> Array:
    """Overwrite the gradients of the results of `normalize_rows` with those of x; return them."""
    run(_normalize_bwd, len(x), x, gain, lanes_of(x.shape[1], x.itemsize), grad)
    return grad


@inlined
def _moments(x, i, lanes):
    """Return the mean of a row, and the inverse of its standard deviation."""
    number = x.dtype.type
    sums = squares = spread(number(0), lanes)
    for f in range(0, x.shape[1], len(lanes)):
        sums += load_vector(x, (i, f), lanes)
    mean = total(sums) / number(x.shape[1])
    for f in range(0, x.shape[1], len(lanes)):
        d = load_vector(x, (i, f), lanes) - mean
        squares += d * d
    variance = total(squares) / number(x.shape[1])
    return mean, number(1) / math.sqrt(variance + number(EPS))


@loop
def _normalize(x, gain, shift, lanes, out, first, last):
    for i in range(first, last):
        mean, inverse = _moments(x, i, lanes)
        for f in range(0, x.shape[1], len(lanes)):
            g, s = load_vector(gain, (f,), lanes), load_vector(shift, (f,), lanes)
            store_vector(out, (i, f), (load_vector(x, (i, f), lanes) - mean) * inverse * g + s)


@loop
def _normalize_bwd(x, gain, lanes, grad, first, last):
    number = x.dtype.type
    for i in range(first, last):
        mean, inverse = _moments(x, i, lanes)
        sums = products = spread(number(0), lanes)
        for f in range(0, x.shape[1], len(lanes)):
            g = load_vector(grad, (i, f), lanes) * load_vector(gain, (f,), lanes)
            store_vector(grad, (i, f), g)
            sums += g
            products += g * ((load_vector(x, (i, f), lanes) - mean) * inverse)
        by_mean = total(sums) / number(x.shape[1])
        by_scale = total(products) / number(x.shape[1])
        for f in range(0, x.shape[1], len(lanes)):
            g = load_vector(grad, (i, f), lanes)
            normal = (load_vector(x, (i, f), lanes) - mean) * inverse
            store_vector(grad, (i, f), (g - by_mean - normal * by_scale) * inverse)
