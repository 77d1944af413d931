"""Vectors of channels, as values of compiled loops.

A loop takes ``lanes``, a tuple with an entry per lane, because Numba compiles a loop for each
length of a tuple. Vectors are values of LLVM, and stay in registers. Each operation on them, or on
a vector and a number, is one instruction. So a loop is fast without the compiler's analysis of its
arrays, which takes long and often fails if there are many arrays.
"""

from __future__ import annotations

from functools import cache

from llvmlite import binding, ir
from numba.core import cgutils

from mlff_triton.kernels.common.cpu.algebra import algebra

WIDEST = 64 if binding.get_host_cpu_features().get("avx512f") else 32
"""Largest size in bytes of a vector such that nine fit into the registers of the CPU."""


@cache
def lanes_of(channels: int, itemsize: int) -> tuple[None, ...]:
    """Return the lanes of the longest vectors that divide a number of channels evenly."""
    lanes = WIDEST // itemsize
    while channels % lanes:
        lanes //= 2
    return (None,) * lanes


@algebra
def load_vector(array, index, lanes):
    """Return the vector that begins at an index, a tuple, of a C-contiguous array."""
    return array.load(index, len(lanes))[0]


@algebra
def load_three(array, index, lanes):
    """Return the first three vectors along the axis whose index is None, as `load_vector`."""
    return tuple(array.load(index, len(lanes), 3))


@algebra
def load_nine(array, index, lanes):
    """Return the first nine vectors along the axis whose index is None, as `load_vector`."""
    return tuple(array.load(index, len(lanes), 9))


@algebra
def store_vector(array, index, vector):
    """Write a vector to an array, from an index on."""
    array.store(index, [vector])


@algebra
def store_all(array, index, vectors):
    """Write a tuple of vectors to an array, along the axis whose index is None."""
    array.store(index, vectors)


@algebra
def spread(number, lanes):
    """Return a vector whose elements are all one number."""
    return number.spread(len(lanes))


@algebra
def total(vector):
    """Return the sum of the elements of a vector, by halves."""
    return vector.apply(vector.kind.element, _write_total)


def _write_total(builder, found):
    lanes = found.type.count
    while lanes > 1:
        lanes //= 2
        nothing = ir.Constant(found.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(
                found,
                nothing,
                ir.Constant(ir.VectorType(cgutils.int32_t, lanes), list(range(k, k + lanes))),
            )
            for k in (0, lanes)
        )
        found = builder.fadd(low, high)
    return builder.extract_element(found, cgutils.int32_t(0))
