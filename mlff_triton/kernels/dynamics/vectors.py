"""Vectors of blocks of atoms, as three float64 blocks."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_vectors(pointer, atom, live):
    """Load three float64 blocks, the components of [N, 3]."""
    return (
        tl.load(pointer + 3 * atom, live, other=0.0),
        tl.load(pointer + 3 * atom + 1, live, other=0.0),
        tl.load(pointer + 3 * atom + 2, live, other=0.0),
    )


@triton.jit
def store_vectors(pointer, atom, live, vectors):
    """Store three blocks as the components of [N, 3]."""
    for d in tl.static_range(3):
        tl.store(pointer + 3 * atom + d, vectors[d], live)


@triton.jit
def load_masses(inverse_mass_ptr, atom, live):
    """Load masses, which are 0 for atoms that do not move and beyond the last atom."""
    inverse_mass = tl.load(inverse_mass_ptr + atom, live, other=0.0)
    moves = inverse_mass > 0
    return tl.where(moves, 1 / tl.where(moves, inverse_mass, 1.0), 0.0)


@triton.jit
def times(factor, a):
    """Multiply vectors."""
    return factor * a[0], factor * a[1], factor * a[2]


@triton.jit
def add(a, factor, b):
    """Return ``a + factor * b`` for vectors, rounded once."""
    return tl.fma(factor, b[0], a[0]), tl.fma(factor, b[1], a[1]), tl.fma(factor, b[2], a[2])


@triton.jit
def apply_symmetric(m, x, y, z):
    """Multiply vectors by a symmetric matrix (xx, yy, zz, yz, xz, xy)."""
    xx, yy, zz, yz, xz, xy = m
    return (
        tl.fma(xz, z, tl.fma(xy, y, xx * x)),
        tl.fma(yz, z, tl.fma(yy, y, xy * x)),
        tl.fma(zz, z, tl.fma(yz, y, xz * x)),
    )
