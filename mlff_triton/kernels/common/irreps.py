"""3x3 tensors inside kernels, as tuples of nine blocks: how they lie in memory, and their algebra.

`load_nine` and `store_nine` serve programs that own a block of the ``N F`` pairs of an atom and a
channel, ``index = n F + f``. ``FULL`` says how the nine numbers of each lie in memory: as a matrix,
row by row, in ``[N, 3, 3, F]``, or as components, ``[9, N, F]``: see `mlff_triton.model.irreps`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError

MAX_ELEMENTS = 2**31 - 1024  # an int32 counts atoms times channels


def has_full_layout(name: str, x: Tensor) -> bool:
    """Whether a tensor is ``[N, 3, 3, F]`` rather than ``[9, N, F]``.

    Raises
    ------
    InputError
        If it is neither, or has more atoms and channels than kernels count.
    """
    full = x.ndim == 4
    if x.shape[1:3] != (3, 3) if full else (x.ndim != 3 or len(x) != 9):
        raise InputError(f"{name} has the shape {list(x.shape)}: use [9, N, F] or [N, 3, 3, F]")
    if x.numel() > 9 * MAX_ELEMENTS:
        raise InputError(f"{name} has more than {MAX_ELEMENTS} atoms times channels: split it")
    return full


def block_size(x: Tensor) -> int:
    """Elements a program of four warps: a thread reads 16 bytes at once, and keeps 27 such."""
    return 2048 // x.element_size()


@triton.jit
def load_tensor(pointer, stride, mask):
    """Nine blocks, ``stride`` apart: that is N F in ``x[9, N, F]``."""
    return (
        tl.load(pointer, mask, other=0.0),
        tl.load(pointer + stride, mask, other=0.0),
        tl.load(pointer + 2 * stride, mask, other=0.0),
        tl.load(pointer + 3 * stride, mask, other=0.0),
        tl.load(pointer + 4 * stride, mask, other=0.0),
        tl.load(pointer + 5 * stride, mask, other=0.0),
        tl.load(pointer + 6 * stride, mask, other=0.0),
        tl.load(pointer + 7 * stride, mask, other=0.0),
        tl.load(pointer + 8 * stride, mask, other=0.0),
    )


@triton.jit
def store_tensor(pointer, stride, x, mask):
    """Store what `load_tensor` loads."""
    for c in tl.static_range(9):
        tl.store(pointer + c * stride, x[c], mask)


@triton.jit
def _first_of_nine(pointer, index, n_elements, channels, FULL: tl.constexpr):
    """Where the nine numbers of each element begin, and how far apart they lie."""
    if FULL:
        stride = tl.cast(channels, tl.int64)
        pointer += index + (index // channels).to(tl.int64) * 8 * channels
    else:
        stride = tl.cast(n_elements, tl.int64)
        pointer += index
    return pointer, stride


@triton.jit
def load_nine(pointer, index, mask, n_elements, channels, FULL: tl.constexpr):
    """Nine numbers of each element, in the order of the layout."""
    pointer, stride = _first_of_nine(pointer, index, n_elements, channels, FULL)
    return load_tensor(pointer, stride, mask)


@triton.jit
def store_nine(pointer, x, index, mask, n_elements, channels, FULL: tl.constexpr):
    """Store what `load_nine` loads."""
    pointer, stride = _first_of_nine(pointer, index, n_elements, channels, FULL)
    store_tensor(pointer, stride, x, mask)


@triton.jit
def compose(x):
    """Nine components -> matrix."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x
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


@triton.jit
def compose_adjoint(t):
    """Gradient of a matrix -> gradient of the components that it is composed of."""
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


@triton.jit
def decompose(t):
    """Matrix -> nine components."""
    t00, t01, t02, t10, t11, t12, t20, t21, t22 = t
    i = (t00 + t11 + t22) / 3
    return (
        i,
        0.5 * (t21 - t12),
        0.5 * (t02 - t20),
        0.5 * (t10 - t01),
        t00 - i,
        0.5 * (t01 + t10),
        0.5 * (t02 + t20),
        t11 - i,
        0.5 * (t12 + t21),
    )


@triton.jit
def decompose_adjoint(x):
    """Gradient of nine components -> gradient of the matrix that they are the parts of."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x
    t22 = (i - s00 - s11) / 3
    return (
        t22 + s00,
        0.5 * (s01 - a2),
        0.5 * (s02 + a1),
        0.5 * (s01 + a2),
        t22 + s11,
        0.5 * (s12 - a0),
        0.5 * (s02 - a1),
        0.5 * (s12 + a0),
        t22,
    )


@triton.jit
def matmul(a, b):
    """Product of two matrices."""
    a00, a01, a02, a10, a11, a12, a20, a21, a22 = a
    b00, b01, b02, b10, b11, b12, b20, b21, b22 = b
    return (
        a00 * b00 + a01 * b10 + a02 * b20,
        a00 * b01 + a01 * b11 + a02 * b21,
        a00 * b02 + a01 * b12 + a02 * b22,
        a10 * b00 + a11 * b10 + a12 * b20,
        a10 * b01 + a11 * b11 + a12 * b21,
        a10 * b02 + a11 * b12 + a12 * b22,
        a20 * b00 + a21 * b10 + a22 * b20,
        a20 * b01 + a21 * b11 + a22 * b21,
        a20 * b02 + a21 * b12 + a22 * b22,
    )


@triton.jit
def transpose(t):
    """Transpose of a matrix."""
    return (t[0], t[3], t[6], t[1], t[4], t[7], t[2], t[5], t[8])


@triton.jit
def dot(a, b):
    """Sum of the nine products."""
    return (
        (a[0] * b[0] + a[1] * b[1] + a[2] * b[2])
        + (a[3] * b[3] + a[4] * b[4] + a[5] * b[5])
        + (a[6] * b[6] + a[7] * b[7] + a[8] * b[8])
    )


@triton.jit
def add(a, b):
    """Sum of two tensors."""
    return (
        a[0] + b[0],
        a[1] + b[1],
        a[2] + b[2],
        a[3] + b[3],
        a[4] + b[4],
        a[5] + b[5],
        a[6] + b[6],
        a[7] + b[7],
        a[8] + b[8],
    )


@triton.jit
def combine(p, a, q, b):
    """``p a + q b`` of two numbers and two nines."""
    return (
        p * a[0] + q * b[0],
        p * a[1] + q * b[1],
        p * a[2] + q * b[2],
        p * a[3] + q * b[3],
        p * a[4] + q * b[4],
        p * a[5] + q * b[5],
        p * a[6] + q * b[6],
        p * a[7] + q * b[7],
        p * a[8] + q * b[8],
    )


@triton.jit
def times(p, a):
    """``p a`` of a number and a nine."""
    return (
        p * a[0],
        p * a[1],
        p * a[2],
        p * a[3],
        p * a[4],
        p * a[5],
        p * a[6],
        p * a[7],
        p * a[8],
    )


@triton.jit
def load_parts(pointer, stride, mask):
    """Three blocks, one for each part, ``stride`` apart."""
    return (
        tl.load(pointer, mask, other=0.0),
        tl.load(pointer + stride, mask, other=0.0),
        tl.load(pointer + 2 * stride, mask, other=0.0),
    )


@triton.jit
def scale_parts(factors, x):
    """Each part of a tensor times its own factor."""
    i, a, s = factors
    return (
        i * x[0],
        a * x[1],
        a * x[2],
        a * x[3],
        s * x[4],
        s * x[5],
        s * x[6],
        s * x[7],
        s * x[8],
    )


@triton.jit
def scale_harmonics(factors, x, y, z):
    """Parts of ``1 + A(u) + (u u^T - |u|^2 / 3)``, each times its own factor."""
    third = (x * x + y * y + z * z) / 3
    return (
        factors[0],
        factors[1] * x,
        factors[1] * y,
        factors[1] * z,
        factors[2] * (x * x - third),
        factors[2] * (x * y),
        factors[2] * (x * z),
        factors[2] * (y * y - third),
        factors[2] * (y * z),
    )


@triton.jit
def dot_parts(a, b):
    """Sums of the products of components, one for each part."""
    return (
        a[0] * b[0],
        a[1] * b[1] + a[2] * b[2] + a[3] * b[3],
        (a[4] * b[4] + a[5] * b[5]) + (a[6] * b[6] + a[7] * b[7]) + a[8] * b[8],
    )


@triton.jit
def part_norms(x):
    """Squared Frobenius norms of the three parts."""
    s22 = x[4] + x[7]
    return (
        3 * x[0] * x[0],
        2 * (x[1] * x[1] + x[2] * x[2] + x[3] * x[3]),
        (x[4] * x[4] + x[7] * x[7]) + s22 * s22 + 2 * (x[5] * x[5] + x[6] * x[6] + x[8] * x[8]),
    )


@triton.jit
def norm_gradients(x):
    """Derivatives of the part's squared norm with respect to each component."""
    return (
        6 * x[0],
        4 * x[1],
        4 * x[2],
        4 * x[3],
        4 * x[4] + 2 * x[7],
        4 * x[5],
        4 * x[6],
        4 * x[7] + 2 * x[4],
        4 * x[8],
    )


@triton.jit
def inverse_norm(x):
    """``1 / (|x|_F^2 + 1)``."""
    i, a, s = part_norms(x)
    return 1 / (i + a + s + 1)


@triton.jit
def normalize_backward(grad, x, s):
    """Gradient of ``x`` from that of ``x s``, where ``s = inverse_norm(x)``."""
    along = dot(grad, x) * s * s
    slope = norm_gradients(x)
    g = times(s, grad)
    return (
        g[0] - along * slope[0],
        g[1] - along * slope[1],
        g[2] - along * slope[2],
        g[3] - along * slope[3],
        g[4] - along * slope[4],
        g[5] - along * slope[5],
        g[6] - along * slope[6],
        g[7] - along * slope[7],
        g[8] - along * slope[8],
    )
