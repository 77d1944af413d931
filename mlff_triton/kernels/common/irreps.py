"""Algebra of 3x3 tensors inside kernels, as tuples of nine blocks, and their memory layouts.

The nine blocks of a tensor are its components (I, a and S: see `mlff_triton.model.irreps`), or the
entries of the matrix, row by row. `load_nine` and `store_nine` serve programs that own a block of
elements ``index = n F + f``, where an element is an atom and a channel. ``FULL`` selects the layout
in memory: matrices ``[N, 3, 3, F]`` if True, components ``[9, N, F]`` if False.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError

MAX_ELEMENTS = 2**31 - 1024  # an int32 counts atoms times channels


def has_full_layout(name: str, x: Tensor) -> bool:
    """Return True for a tensor ``[N, 3, 3, F]``, False for ``[9, N, F]``.

    Raises
    ------
    InputError
        If the tensor has neither shape, or more elements than kernels can index.
    """
    full = x.ndim == 4
    if x.shape[1:3] != (3, 3) if full else (x.ndim != 3 or len(x) != 9):
        raise InputError(f"{name} has the shape {list(x.shape)}: use [9, N, F] or [N, 3, 3, F]")
    if x.numel() > 9 * MAX_ELEMENTS:
        raise InputError(
            f"{name} has more than {MAX_ELEMENTS} atoms times channels: split it into batches"
        )
    return full


def block_size(x: Tensor) -> int:
    """Return the elements per program of four warps: 16 bytes per thread and component."""
    return 2048 // x.element_size()


def launch_elements(
    kernel: Any,
    x: Tensor,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    **constants: Any,
) -> None:
    """Launch a kernel whose programs own blocks of elements ``n F + f`` of 3x3 tensors.

    Parameters
    ----------
    kernel : JITFunction
        Its arguments are those of ``inputs`` and ``outputs``, the numbers of elements and of
        channels, and constants, with the block size as ``BLOCK``.
    x : [9, N, F] or [N, 3, 3, F]
        One of these tensors.
    inputs, outputs : sequence of Tensor
        Inputs may have any strides; outputs are contiguous.
    """
    n_elements = x.numel() // 9
    constants = {"BLOCK": block_size(x)} | constants
    with torch.cuda.device_of(x):
        kernel[(triton.cdiv(n_elements, constants["BLOCK"]),)](
            *(None if tensor is None else tensor.contiguous() for tensor in inputs),
            *outputs,
            n_elements,
            x.shape[-1],
            **constants,
        )


@triton.jit
def stride_of(n_rows, n_atoms, F: tl.constexpr):
    """Return the stride of a tensor with N atoms, or with a number of rows that is not None."""
    return tl.cast(n_atoms if n_rows is None else n_rows, tl.int64) * F


@triton.jit
def load_tensor(pointer, stride, mask):
    """Load nine blocks, ``stride`` apart, which is N F for ``x[9, N, F]``."""
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
    """Store nine blocks, ``stride`` apart."""
    for c in tl.static_range(9):
        tl.store(pointer + c * stride, x[c], mask)


@triton.jit
def _first_of_nine(pointer, index, n_elements, channels, FULL: tl.constexpr):
    """Return pointers to the first of each element's nine values, and the stride between them."""
    if FULL:
        stride = tl.cast(channels, tl.int64)
        pointer += index + (index // channels).to(tl.int64) * 8 * channels
    else:
        stride = tl.cast(n_elements, tl.int64)
        pointer += index
    return pointer, stride


@triton.jit
def load_nine(pointer, index, mask, n_elements, channels, FULL: tl.constexpr):
    """Load the nine values of each element, in the order of the layout."""
    pointer, stride = _first_of_nine(pointer, index, n_elements, channels, FULL)
    return load_tensor(pointer, stride, mask)


@triton.jit
def store_nine(pointer, x, index, mask, n_elements, channels, FULL: tl.constexpr):
    """Store the nine values of each element, in the order of the layout."""
    pointer, stride = _first_of_nine(pointer, index, n_elements, channels, FULL)
    store_tensor(pointer, stride, x, mask)


@triton.jit
def compose(x):
    """Return the matrix of nine components."""
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
    """Return the gradient of nine components, given that of their matrix."""
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
    """Return the nine components of a matrix."""
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
    """Return the gradient of a matrix, given that of its nine components."""
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
    """Return the product of two matrices."""
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
    """Return the transpose of a matrix."""
    return (t[0], t[3], t[6], t[1], t[4], t[7], t[2], t[5], t[8])


@triton.jit
def dot(a, b):
    """Return the sum of the nine products."""
    return (
        (a[0] * b[0] + a[1] * b[1] + a[2] * b[2])
        + (a[3] * b[3] + a[4] * b[4] + a[5] * b[5])
        + (a[6] * b[6] + a[7] * b[7] + a[8] * b[8])
    )


@triton.jit
def add(a, b):
    """Return the sum of two tensors."""
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
def combine(u, a, v, b):
    """Return ``u a + v b`` for blocks u, v and tensors a, b."""
    return (
        u * a[0] + v * b[0],
        u * a[1] + v * b[1],
        u * a[2] + v * b[2],
        u * a[3] + v * b[3],
        u * a[4] + v * b[4],
        u * a[5] + v * b[5],
        u * a[6] + v * b[6],
        u * a[7] + v * b[7],
        u * a[8] + v * b[8],
    )


@triton.jit
def times(u, a):
    """Return ``u a`` for a block u and a tensor a."""
    return (
        u * a[0],
        u * a[1],
        u * a[2],
        u * a[3],
        u * a[4],
        u * a[5],
        u * a[6],
        u * a[7],
        u * a[8],
    )


@triton.jit
def load_parts(pointer, stride, mask):
    """Load three blocks, one per part, ``stride`` apart."""
    return (
        tl.load(pointer, mask, other=0.0),
        tl.load(pointer + stride, mask, other=0.0),
        tl.load(pointer + 2 * stride, mask, other=0.0),
    )


@triton.jit
def store_parts(pointer, stride, parts, mask):
    """Store three blocks, one per part, ``stride`` apart."""
    tl.store(pointer, parts[0], mask)
    tl.store(pointer + stride, parts[1], mask)
    tl.store(pointer + 2 * stride, parts[2], mask)


@triton.jit
def scale_parts(factors, x):
    """Multiply each part of a tensor by its own factor."""
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
    """Return the components of ``1 + A(u) + (u u^T - |u|^2 / 3)``, each part times its factor."""
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
def harmonics_change(factors, u, d):
    """Return the change of ``A(u) + (u u^T - |u|^2 / 3)`` for a change d of u, times factors."""
    third = 2 * (u[0] * d[0] + u[1] * d[1] + u[2] * d[2]) / 3
    return (
        0 * factors[0],
        factors[1] * d[0],
        factors[1] * d[1],
        factors[1] * d[2],
        factors[2] * (2 * u[0] * d[0] - third),
        factors[2] * (u[0] * d[1] + u[1] * d[0]),
        factors[2] * (u[0] * d[2] + u[2] * d[0]),
        factors[2] * (2 * u[1] * d[1] - third),
        factors[2] * (u[1] * d[2] + u[2] * d[1]),
    )


@triton.jit
def traceless_gradient(grad, x, y, z):
    """Return the gradient w of ``<g_S, u u^T - |u|^2 / 3>`` at u = (x, y, z)."""
    s22 = 2 * (grad[4] + grad[7]) / 3  # twice the trace term |u|^2 / 3
    return (
        (2 * grad[4] - s22) * x + grad[5] * y + grad[6] * z,
        grad[5] * x + (2 * grad[7] - s22) * y + grad[8] * z,
        grad[6] * x + grad[8] * y - s22 * z,
    )


@triton.jit
def dot_parts(a, b):
    """Return the sums of the products of components, one per part."""
    return (
        a[0] * b[0],
        a[1] * b[1] + a[2] * b[2] + a[3] * b[3],
        (a[4] * b[4] + a[5] * b[5]) + (a[6] * b[6] + a[7] * b[7]) + a[8] * b[8],
    )


@triton.jit
def part_norms(x):
    """Return the squared Frobenius norms of the three parts."""
    s22 = x[4] + x[7]
    return (
        3 * x[0] * x[0],
        2 * (x[1] * x[1] + x[2] * x[2] + x[3] * x[3]),
        (x[4] * x[4] + x[7] * x[7]) + s22 * s22 + 2 * (x[5] * x[5] + x[6] * x[6] + x[8] * x[8]),
    )


@triton.jit
def part_norms_change(x, d):
    """Return the changes of `part_norms` for a change d of x."""
    s22, d22 = x[4] + x[7], d[4] + d[7]
    mixed = x[5] * d[5] + x[6] * d[6] + x[8] * d[8]
    return (
        6 * x[0] * d[0],
        4 * (x[1] * d[1] + x[2] * d[2] + x[3] * d[3]),
        2 * ((x[4] * d[4] + x[7] * d[7]) + s22 * d22 + 2 * mixed),
    )


@triton.jit
def norm_gradients(x):
    """Return the derivatives of the squared norm with respect to each component."""
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
    """Return ``1 / (|x|_F^2 + 1)``."""
    i, a, s = part_norms(x)
    return 1 / (i + a + s + 1)


@triton.jit
def normalize_backward(grad, x, s):
    """Return the gradient of ``x``, given that of ``x s`` with ``s = inverse_norm(x)``."""
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
