"""Linear maps of rows, with a fixed order of their sums.

Libraries sum in another order if matrices have few rows, and PyTorch's are slower here.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from mlff_triton.kernels.common.cpu.algebra import algebra, smaller
from mlff_triton.kernels.common.cpu.arrays import Array, as_array
from mlff_triton.kernels.common.cpu.compilation import FEWEST, loop, run
from mlff_triton.kernels.common.cpu.packed import transposed_weight
from mlff_triton.kernels.common.cpu.vectors import lanes_of, load_vector, spread, store_vector
from mlff_triton.kernels.numerics.split import SplitWeight

TERMS = 128
"""Terms of a partial sum; a single long sum would have larger rounding errors."""

WORK = 7_000_000
"""Floating-point operations that are worth a thread."""


def fewest_rows(x: Array | Tensor, weight: Array) -> int:
    """Return the fewest rows of a range in which x[C, N, in] is mapped."""
    of_a_row: int = 2 * x.shape[0] * weight.shape[1] * weight.shape[2]
    return min(FEWEST, max(1, WORK // of_a_row))


def bias_of_map(bias: Tensor | None, weight: Array) -> Array:
    """Return a bias [out] as `map_parts` takes it: empty if there is none."""
    return weight[0, 0, :0] if bias is None else as_array(bias)


def map_rows(x: Array, weight: SplitWeight, bias: Tensor | None = None) -> Array:
    """Map rows [N, in] to [N, out]."""
    w = transposed_weight(weight.weight)
    out = np.empty((1, len(x), w.shape[2]), x.dtype)
    lanes = lanes_of(w.shape[2], x.itemsize)
    given = x[None], w, bias_of_map(bias, w), lanes, out
    run(map_parts, len(x), *given, fewest=fewest_rows(out, w))
    found: Array = out[0]
    return found


@loop
def map_parts(x, weight, bias, lanes, out, first, last):
    """Map rows x[C, N, in] to out[C, N, out], each part by its own weights [parts, in, out].

    A bias [out] is added to all of them, unless it is empty.
    """
    zero = spread(weight.dtype.type(0), lanes)
    zeros = zero, zero, zero, zero, zero, zero, zero, zero
    for c in range(x.shape[0]):
        part = 0 if c == 0 else 1 if c < 4 else 2
        for i in range(first, last, 8):
            rows = _rows(i, last - 1)
            for f in range(0, weight.shape[2], len(lanes)):
                sums = zeros
                if len(bias):
                    start = load_vector(bias, (f,), lanes)
                    sums = start, start, start, start, start, start, start, start
                for begin in range(0, weight.shape[1], TERMS):
                    partial = zeros
                    for k in range(begin, smaller(begin + TERMS, weight.shape[1])):
                        w = load_vector(weight, (part, k, f), lanes)
                        partial = _add_products(partial, x, c, rows, k, w)
                    sums = _add(sums, partial)
                _store(out, c, rows, f, sums)


@algebra
def _rows(i, end):
    """Return eight consecutive rows. The last row may be mapped repeatedly, to the same values."""
    return tuple(smaller(i + k, end) for k in range(8))


@algebra
def _add_products(sums, x, c, rows, k, weight):
    return tuple(total + x[c, row, k] * weight for total, row in zip(sums, rows, strict=True))


@algebra
def _add(one, other):
    return tuple(a + b for a, b in zip(one, other, strict=True))


@algebra
def _store(out, c, rows, f, vectors):
    for row, vector in zip(rows, vectors, strict=True):
        store_vector(out, (c, row, f), vector)
