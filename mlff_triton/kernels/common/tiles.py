"""The three parts of tensors inside kernels, with a factor or a norm each; products with weights.

Tensors are tuples of nine blocks: the components of `mlff_triton.model.irreps`, as in `_irreps`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlff_triton.kernels.common.irreps import dot, times


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


@triton.jit
def multiply(x, high_ptr, low_ptr, offsets, acc, PRECISION: tl.constexpr):
    """``acc + x w`` for blocks [M, K] and [K, N] of a `Map`, whose weights lie at ``offsets``.

    With "tf32x3", products of TF32 halves, the smallest first; their own low halves' product is
    beyond float32. A block is summed from zero and then added as float32 numbers are, since tensor
    cores round sums towards zero (https://doi.org/10.7717/peerj-cs.330). On an H200 a sum of K
    products loses 0.42 + 0.0096 K units in the last place on average: the weights' low halves hold
    that much more for K = 32, those of ``x`` what is missing for others. Otherwise one product, of
    whole numbers or of high halves.
    """
    high = tl.load(high_ptr + offsets)
    if PRECISION == "tf32x3":
        low = tl.load(low_ptr + offsets)
        x_high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        x_low = x - x_high
        missing: tl.constexpr = 0.0096 * (x.shape[1] - 32) * 2.0**-23
        if missing != 0:
            x_low += missing * x
        block = tl.dot(x_low, high, input_precision="tf32")
        block = tl.dot(x_high, low, block, input_precision="tf32")
        block = tl.dot(x_high, high, block, input_precision="tf32")
        acc += block
    else:
        acc = tl.dot(x, high, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc
