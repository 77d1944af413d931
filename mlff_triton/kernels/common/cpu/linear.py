"""Linear maps of rows, with a fixed order of their sums.

Libraries sum in another order where matrices have few rows, and those of PyTorch are slower here.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from mlff_triton.kernels.common.cpu.arrays import Array, as_array
from mlff_triton.kernels.common.cpu.compilation import FEWEST, loop, run
from mlff_triton.kernels.common.cpu.packed import transposed_weight
from mlff_triton.kernels.common.cpu.vectors import lanes_of, load_vector, spread, store_vector
from mlff_triton.kernels.numerics.split import SplitWeight

TERMS = 128
"""Terms of a partial sum. Rounding errors of one long sum would be larger than those of others."""

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
    end = last - 1
    for c in range(x.shape[0]):
        part = 0 if c == 0 else 1 if c < 4 else 2
        for i in range(first, last, 8):
            # the last rows are mapped more than once, to the same values
            i1, i2, i3 = min(i + 1, end), min(i + 2, end), min(i + 3, end)
            i4, i5, i6, i7 = min(i + 4, end), min(i + 5, end), min(i + 6, end), min(i + 7, end)
            for f in range(0, weight.shape[2], len(lanes)):
                start = load_vector(bias, (f,), lanes) if len(bias) else zero
                s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = start
                for begin in range(0, weight.shape[1], TERMS):
                    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = zero
                    for k in range(begin, min(begin + TERMS, weight.shape[1])):
                        w = load_vector(weight, (part, k, f), lanes)
                        a0 += x[c, i, k] * w
                        a1 += x[c, i1, k] * w
                        a2 += x[c, i2, k] * w
                        a3 += x[c, i3, k] * w
                        a4 += x[c, i4, k] * w
                        a5 += x[c, i5, k] * w
                        a6 += x[c, i6, k] * w
                        a7 += x[c, i7, k] * w
                    s0 += a0
                    s1 += a1
                    s2 += a2
                    s3 += a3
                    s4 += a4
                    s5 += a5
                    s6 += a6
                    s7 += a7
                store_vector(out, (c, i, f), s0)
                store_vector(out, (c, i1, f), s1)
                store_vector(out, (c, i2, f), s2)
                store_vector(out, (c, i3, f), s3)
                store_vector(out, (c, i4, f), s4)
                store_vector(out, (c, i5, f), s5)
                store_vector(out, (c, i6, f), s6)
                store_vector(out, (c, i7, f), s7)
