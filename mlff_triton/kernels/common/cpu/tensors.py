"""Algebra of 3x3 tensors as nine numbers, in the loops of this package.

The functions are those of `mlff_triton.kernels.common.reference.tensors`, for one atom and a
channel, or a vector of channels: components (I, a0, a1, a2, s00, s01, s02, s11, s12), or entries of
matrices row by row.
"""

from __future__ import annotations

from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.vectors import load_nine, load_three, store_all


@algebra
def load_wide(x, atom, channel, lanes):
    """Return the components of an atom, as vectors of consecutive channels."""
    return load_nine(x, (None, atom, channel), lanes)


@algebra
def load_parts(x, atom, channel, lanes):
    """Return the values x[N, 3, F] of an atom's three parts, as vectors of channels."""
    return load_three(x, (atom, None, channel), lanes)


@algebra
def store_wide(x, atom, channel, c):
    """Write the components of an atom, given as vectors of consecutive channels."""
    store_all(x, (None, atom, channel), c)


@algebra
def scale(f, c):
    """Multiply components by a number."""
    return (
        f * c[0],
        f * c[1],
        f * c[2],
        f * c[3],
        f * c[4],
        f * c[5],
        f * c[6],
        f * c[7],
        f * c[8],
    )


@algebra
def scale_parts(f, c):
    """Multiply each part by its own factor, of three."""
    return (
        f[0] * c[0],
        f[1] * c[1],
        f[1] * c[2],
        f[1] * c[3],
        f[2] * c[4],
        f[2] * c[5],
        f[2] * c[6],
        f[2] * c[7],
        f[2] * c[8],
    )


@algebra
def add(b, c):
    """Add components."""
    return (
        b[0] + c[0],
        b[1] + c[1],
        b[2] + c[2],
        b[3] + c[3],
        b[4] + c[4],
        b[5] + c[5],
        b[6] + c[6],
        b[7] + c[7],
        b[8] + c[8],
    )


@algebra
def dot_parts(b, c):
    """Return the sums of products of components, one per part."""
    return (
        b[0] * c[0],
        b[1] * c[1] + b[2] * c[2] + b[3] * c[3],
        b[4] * c[4] + b[5] * c[5] + b[6] * c[6] + b[7] * c[7] + b[8] * c[8],
    )


@algebra
def dot(b, c):
    """Return the sum of products of components."""
    return (
        b[0] * c[0]
        + b[1] * c[1]
        + b[2] * c[2]
        + b[3] * c[3]
        + b[4] * c[4]
        + b[5] * c[5]
        + b[6] * c[6]
        + b[7] * c[7]
        + b[8] * c[8]
    )


@algebra
def compose(c):
    """Return the matrix of components."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = c
    return (
        i + s00,
        s01 - a2,
        s02 + a1,
        s01 + a2,
        i + s11,
        s12 - a0,
        s02 - a1,
        s12 + a0,
        i - s00 - s11,
    )


@algebra
def compose_adjoint(t):
    """Apply the adjoint of `compose`."""
    t00, t01, t02, t10, t11, t12, t20, t21, t22 = t
    return (
        t00 + t11 + t22,
        t21 - t12,
        t02 - t20,
        t10 - t01,
        t00 - t22,
        t01 + t10,
        t02 + t20,
        t11 - t22,
        t12 + t21,
    )


@algebra
def decompose(t, half):
    """Return the components of a matrix; ``half`` is 1/2 in the precision of the entries."""
    t00, t01, t02, t10, t11, t12, t20, t21, t22 = t
    i = (t00 + t11 + t22) / (half + half + half + half + half + half)
    return (
        i,
        (t21 - t12) * half,
        (t02 - t20) * half,
        (t10 - t01) * half,
        t00 - i,
        (t01 + t10) * half,
        (t02 + t20) * half,
        t11 - i,
        (t12 + t21) * half,
    )


@algebra
def decompose_adjoint(c, half):
    """Apply the adjoint of `decompose`."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = c
    t22 = (i - s00 - s11) / (half + half + half + half + half + half)
    return (
        t22 + s00,
        (s01 - a2) * half,
        (s02 + a1) * half,
        (s01 + a2) * half,
        t22 + s11,
        (s12 - a0) * half,
        (s02 - a1) * half,
        (s12 + a0) * half,
        t22,
    )


@algebra
def matmul(a, b):
    """Return the product of matrices."""
    return (
        a[0] * b[0] + a[1] * b[3] + a[2] * b[6],
        a[0] * b[1] + a[1] * b[4] + a[2] * b[7],
        a[0] * b[2] + a[1] * b[5] + a[2] * b[8],
        a[3] * b[0] + a[4] * b[3] + a[5] * b[6],
        a[3] * b[1] + a[4] * b[4] + a[5] * b[7],
        a[3] * b[2] + a[4] * b[5] + a[5] * b[8],
        a[6] * b[0] + a[7] * b[3] + a[8] * b[6],
        a[6] * b[1] + a[7] * b[4] + a[8] * b[7],
        a[6] * b[2] + a[7] * b[5] + a[8] * b[8],
    )


@algebra
def transpose(a):
    """Return the transpose of a matrix."""
    return a[0], a[3], a[6], a[1], a[4], a[7], a[2], a[5], a[8]


@algebra
def half_norm_gradients(c):
    """Return half the derivatives of the squared Frobenius norm by the components."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = c
    return (
        i + i + i,
        a0 + a0,
        a1 + a1,
        a2 + a2,
        s00 + s00 + s11,
        s01 + s01,
        s02 + s02,
        s11 + s11 + s00,
        s12 + s12,
    )


@algebra
def norm(c):
    """Return the squared Frobenius norm of the matrix of components."""
    return dot(c, half_norm_gradients(c))


@algebra
def normalize_backward(grad, c, inverse):
    """Return the gradient of components, given that of their product with ``inverse``.

    That is ``1 / (norm + 1)``.
    """
    along = -(dot(grad, c) * inverse * inverse)
    return add(scale(inverse, grad), scale(along + along, half_norm_gradients(c)))


@algebra
def square_backward(grad, d, half):
    """Return the gradient of components d, given that of ``decompose(D D)``."""
    g, t = decompose_adjoint(grad, half), transpose(compose(d))
    return compose_adjoint(add(matmul(g, t), matmul(t, g)))
