"""Motion of atoms since a neighbor matrix was built, and how far they may move.

An atom may move until a pair outside the matrix could have come within the cutoff. If the cell has
changed since by ``F``, that is

    limit = (sigma(F) radius - cutoff) / 2        of  |pos - pos_built @ F|

where sigma is a lower bound of the smallest singular value of F.
"""

from __future__ import annotations

import triton
import triton.language as tl

_MARGIN = tl.constexpr(1e-6)  # Å; subtracted from the limit, against rounding


@triton.jit
def load_vector(pointer, index):
    """Load the three components of one vector of [N, 3]."""
    return (
        tl.load(pointer + 3 * index),
        tl.load(pointer + 3 * index + 1),
        tl.load(pointer + 3 * index + 2),
    )


@triton.jit
def load_columns(pointer):
    """Load the columns of a 3x3 matrix."""
    return (
        (tl.load(pointer), tl.load(pointer + 3), tl.load(pointer + 6)),
        (tl.load(pointer + 1), tl.load(pointer + 4), tl.load(pointer + 7)),
        (tl.load(pointer + 2), tl.load(pointer + 5), tl.load(pointer + 8)),
    )


@triton.jit
def subtract_product(a, b, columns):
    """Return ``a - b @ matrix`` for vectors a, b and the columns of a 3x3 matrix."""
    return a[0] - dot(b, columns[0]), a[1] - dot(b, columns[1]), a[2] - dot(b, columns[2])


@triton.jit
def dot(a, b):
    """Return the dot product of vectors, rounded in the same way in every kernel.

    In ``x * x + y * y`` the compiler chooses which product to fuse with the sum, and may choose
    differently for another BLOCK. Geometry must not depend on the capacity of the matrix.
    """
    return tl.fma(a[2], b[2], tl.fma(a[1], b[1], a[0] * b[0]))


@triton.jit
def cross(a, b):
    """Return the cross product of vectors."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@triton.jit
def norm(v):
    """Return the length of vectors."""
    return tl.sqrt(dot(v, v))


@triton.jit
def deformation(inverse_ptr, columns):
    """Return the columns of ``F = inverse @ matrix``, and a lower bound of how it scales lengths.

    Gershgorin's circles bound the eigenvalues of ``F^T F``, exactly if it is diagonal.
    """
    i = inverse_ptr
    first = tl.load(i), tl.load(i + 1), tl.load(i + 2)
    second = tl.load(i + 3), tl.load(i + 4), tl.load(i + 5)
    third = tl.load(i + 6), tl.load(i + 7), tl.load(i + 8)
    x = dot(first, columns[0]), dot(second, columns[0]), dot(third, columns[0])
    y = dot(first, columns[1]), dot(second, columns[1]), dot(third, columns[1])
    z = dot(first, columns[2]), dot(second, columns[2]), dot(third, columns[2])
    yz, xz, xy = tl.abs(dot(y, z)), tl.abs(dot(x, z)), tl.abs(dot(x, y))
    lowest = tl.minimum(dot(x, x) - xy - xz, dot(y, y) - xy - yz)
    lowest = tl.minimum(lowest, dot(z, z) - xz - yz)
    return (x, y, z), tl.sqrt(tl.maximum(lowest, 0.0))


@triton.jit
def motion(position, cell, built, inverse_ptr, cutoff, radius):
    """Return how far an atom has moved since the matrix was built, and how far it may move.

    Takes its position, the columns of its cell, its position when the matrix was built, a pointer
    to the inverse of the cell at that time, and cutoff and radius of the matrix.
    """
    strain, stretch = deformation(inverse_ptr, cell)
    moved = norm(subtract_product(position, built, strain))
    return moved, (stretch * radius - cutoff) / 2 - _MARGIN


@triton.jit
def is_unwanted(wanted_ptr):
    """Return True if a flag on the GPU says that the matrix is valid; False without a flag."""
    if wanted_ptr is None:
        return False
    else:  # noqa: RET505 (Triton compiles one branch only)
        return tl.load(wanted_ptr) == 0
