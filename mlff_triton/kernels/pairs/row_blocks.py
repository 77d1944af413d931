"""Normalized rows, their products with weights, and gates, inside kernels.

Products in float32 are those of halves (see `mlff_triton.kernels.numerics.split`), unless channels
are few. They are sums over chunks of channels, which are added in float32.

Fast instructions for powers of two and quotients err in the last two bits, and a rounded exponent
adds to the error. This shows only in float32, where exact instructions replace them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.numerics.exponential import LOG2_E, exact_quotient, exp_of_normal
from mlff_triton.kernels.numerics.product import (
    FULL,
    multiply,
    product,
    split,
    split_scaled,
    untruncated,
)

_LOWEST = tl.constexpr(-87.0)  # below it, exponentials are not normal numbers
_GROUP = tl.constexpr(8)  # adjacent rows of each of two joined weights
_CHUNK = 64  # largest number of channels of a float32 sum on tensor cores


def chunk(block: int, halves: bool) -> int:
    """Return the channels per chunk of products, of halves or not, for a block of all channels.

    Halves take at least two chunks, as rounding errors grow with the length of a sum.
    """
    return min(block // 2, _CHUNK) if halves else block


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Return two weights [n_out, C] as one, [2 n_out, C], for `multiply_twice`.

    Eight rows of one alternate with eight rows of the other. If their number is not a multiple of
    eight, zeros follow.
    """
    padded = triton.cdiv(len(first), _GROUP.value) * _GROUP.value
    weights = torch.stack([first, second])
    if padded > len(first):
        weights = torch.nn.functional.pad(weights, (0, 0, 0, padded - len(first)))
    groups: Tensor = weights.unflatten(1, (-1, _GROUP.value))
    return groups.transpose(0, 1).flatten(0, 2)


@triton.jit
def locate(n_rows, shape, M: tl.constexpr):
    """Return the batch, row and token of M places of a program, and a mask of those that exist."""
    rows, length = shape
    place = tl.program_id(0) * M + tl.arange(0, M)
    batch, row = place // length // rows, place // length % rows
    return batch.to(tl.int64), row.to(tl.int64), (place % length).to(tl.int64), place < n_rows


@triton.jit
def offsets_of(place, strides):
    """Return the offsets [M] of rows at places from `locate`, in a tensor [B, R, S, ...]."""
    return place[0] * strides[0] + place[1] * strides[1] + place[2] * strides[2]


@triton.jit
def load_rows(x_ptr, offsets, inside, channel, channels):
    """Load float32 rows [M, C] at ``offsets`` [M]."""
    mask = inside[:, None] & (channel < channels)[None, :]
    pointers = x_ptr + offsets[:, None] + channel.to(tl.int64)[None, :]
    return tl.load(pointers, mask, other=0.0).to(tl.float32)


@triton.jit
def load_again(x_ptr, offsets, inside, channel, channels):
    """Load rows [M, C] for the last time, as `load_rows` does.

    With `load_rows`, the compiler would keep the rows of an earlier load in registers.
    """
    mask = inside[:, None] & (channel < channels)[None, :]
    pointers = x_ptr + offsets[:, None] + channel[None, :]
    return tl.load(pointers, mask, other=0.0, eviction_policy="evict_first").to(tl.float32)


@triton.jit
def store_rows(y, x_ptr, offsets, inside, channel, channels):
    """Store rows [M, C] at ``offsets`` [M], rounded to the dtype of x."""
    mask = inside[:, None] & (channel < channels)[None, :]
    tl.store(x_ptr + offsets[:, None] + channel[None, :], y.to(x_ptr.dtype.element_ty), mask)


@triton.jit
def add_to_rows(y, x_ptr, offsets, inside, channels):
    """Add updates [M, C] to rows that have been read before."""
    channel = tl.arange(0, y.shape[1])
    y += load_again(x_ptr, offsets, inside, channel, channels)
    store_rows(y, x_ptr, offsets, inside, channel, channels)


@triton.jit
def load_chunks(x_ptr, offsets, inside, channels, C: tl.constexpr, CHUNK: tl.constexpr):
    """Load rows as `load_rows` does, as a tuple of chunks [M, CHUNK] of C channels."""
    chunks = ()
    for start in tl.static_range(0, C, CHUNK):
        channel = start + tl.arange(0, CHUNK)
        part = load_rows(x_ptr, offsets, inside, channel, channels)
        chunks = chunks + (part,)  # type: ignore[assignment] # noqa: RUF005
    return chunks


@triton.jit
def _inverse_root(x, EXACT: tl.constexpr):
    """Return ``1 / sqrt(x)``, in float32 to the last bit if EXACT."""
    return tl.div_rn(1.0, tl.sqrt_rn(x)) if EXACT else tl.rsqrt(x)


@triton.jit
def moments(chunks, channels: tl.constexpr, EPS: tl.constexpr, EXACT: tl.constexpr):
    """Return mean and inverse standard deviation of rows, a tuple of chunks [M, CHUNK].

    The rows are zero from ``channels`` on. In float32, the results are exact to the last bits if
    EXACT.
    """
    CHUNK: tl.constexpr = chunks[0].shape[1]
    total = chunks[0]
    for k in tl.static_range(1, len(chunks)):
        total += chunks[k]
    mean = tl.sum(total, 1) * (1 / channels)
    squares = tl.zeros_like(total)
    for k in tl.static_range(len(chunks)):
        inside = tl.arange(0, CHUNK) + k * CHUNK < channels
        centered = tl.where(inside[None, :], chunks[k] - mean[:, None], 0.0)
        squares += centered * centered
    variance = tl.sum(squares, 1) * (1 / channels)
    return mean, _inverse_root(variance + EPS, EXACT)


@triton.jit
def normalize(
    chunks,
    weight_ptr,
    bias_ptr,
    channels: tl.constexpr,
    dtype: tl.constexpr,
    EPS: tl.constexpr,
    HALVES: tl.constexpr,
):
    """Normalize rows, a tuple of chunks [M, CHUNK], for `multiply_rows`.

    Weight and bias are [channels], and the bias may be None. Returns the chunks in a dtype, or, if
    HALVES, their halves: the high and the low one of the first chunk, and so on.
    """
    CHUNK: tl.constexpr = chunks[0].shape[1]
    mean, rstd = moments(chunks, channels, EPS, HALVES or dtype == tl.float32)
    rows = ()
    for k in tl.static_range(len(chunks)):
        channel = tl.arange(0, CHUNK) + k * CHUNK
        inside = channel < channels
        weight = tl.load(weight_ptr + channel, inside, other=0.0).to(tl.float32)
        x = (chunks[k] - mean[:, None]) * rstd[:, None] * weight[None, :]
        if bias_ptr is not None:
            x += tl.load(bias_ptr + channel, inside, other=0.0).to(tl.float32)[None, :]
        rows = rows + (split(x, "shifted_halves") if HALVES else (x.to(dtype),))
    return rows


@triton.jit
def load_block(weight_ptr, row, column, n_rows, n_columns, M: tl.constexpr, K: tl.constexpr):
    """Load a block [M, K] of a weight [n_rows, n_columns], zero beyond its ends."""
    rows, columns = tl.arange(0, M) + row, tl.arange(0, K) + column
    inside = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    return tl.load(weight_ptr + rows[:, None] * n_columns + columns[None, :], inside, other=0.0)


@triton.jit
def _load_halves(weight_ptr, row, column, n_rows, n_columns, M: tl.constexpr, K: tl.constexpr):
    """Load the high and the low halves of such a block, from halves [2, n_rows, n_columns]."""
    high = load_block(weight_ptr, row, column, n_rows, n_columns, M, K)
    low_ptr = weight_ptr + n_rows * n_columns
    return high, load_block(low_ptr, row, column, n_rows, n_columns, M, K)


@triton.jit
def multiply_rows(
    rows,
    weight_ptr,
    first,
    n_out,
    channels,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    TURNED: tl.constexpr,
    K: tl.constexpr,
):
    """Multiply rows from `normalize` by K rows of a weight [n_out, channels], from ``first`` on.

    The weight is from `weight_operands`, [2, n_out, channels] if HALVES. The result is [M, K], or
    [K, M] if TURNED.
    """
    CHUNK: tl.constexpr = rows[0].shape[1]
    if HALVES:
        y = tl.zeros((K, rows[0].shape[0]) if TURNED else (rows[0].shape[0], K), tl.float32)
        for k in tl.static_range(len(rows) // 2):
            high, low = _load_halves(weight_ptr, first, k * CHUNK, n_out, channels, K, CHUNK)
            if TURNED:
                turned = rows[2 * k].T, rows[2 * k + 1].T
                y += product((high, low), turned, "shifted_halves")
            else:
                y += product((rows[2 * k], rows[2 * k + 1]), (high.T, low.T), "shifted_halves")
        y = untruncated(y, CHUNK, LOSS)
    else:
        weight = load_block(weight_ptr, first, 0, n_out, channels, K, CHUNK)
        x, y = (weight, rows[0].T) if TURNED else (rows[0], weight.T)
        y = tl.dot(x, y, input_precision=FULL)
        if rows[0].dtype == tl.float32:
            y = untruncated(y, CHUNK, LOSS)
    return y


@triton.jit
def multiply_twice(
    rows,
    weight_ptr,
    first,
    n_out,
    channels,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    TURNED: tl.constexpr,
    K: tl.constexpr,
):
    """Multiply rows by K rows of each of two weights that are `joined`, as `multiply_rows` does.

    One product takes fewer registers and waits than two. Both results lie in the same threads.
    """
    n_rows = (n_out + _GROUP - 1) // _GROUP * (2 * _GROUP)  # with the zeros of `joined`
    both = multiply_rows(rows, weight_ptr, 2 * first, n_rows, channels, HALVES, LOSS, TURNED, 2 * K)
    M: tl.constexpr = both.shape[1] if TURNED else both.shape[0]
    if TURNED:
        both = tl.permute(tl.reshape(both, (K // _GROUP, 2, _GROUP, M)), (0, 2, 3, 1))
    else:
        both = tl.permute(tl.reshape(both, (M, K // _GROUP, 2, _GROUP)), (0, 1, 3, 2))
    y, z = tl.split(both)
    shape: tl.constexpr = (K, M) if TURNED else (M, K)
    return tl.reshape(y, shape), tl.reshape(z, shape)


@triton.jit
def add_product(
    acc,
    x,
    weight_ptr,
    first,
    n_out,
    n_in,
    HALVES: tl.constexpr,
):
    """Add products of rows x [M, K] and K columns of a weight [n_out, n_in] to a sum [M, C].

    The weight is from `weight_operands`, [2, n_out, n_in] if HALVES. In float32, sums lack a part
    that `untruncated` restores.
    """
    C: tl.constexpr = acc.shape[1]
    K: tl.constexpr = x.shape[1]
    if HALVES:
        high, low = _load_halves(weight_ptr, 0, first, n_out, n_in, C, K)
        x_high, x_low, unit = split_scaled(x)
        y = product((x_high, x_low), (high.T, low.T), "shifted_halves")
        acc += y * unit[:, None]
    else:
        weight = load_block(weight_ptr, 0, first, n_out, n_in, C, K)
        acc = multiply(x.to(weight.dtype), (weight.T,), acc, FULL)
    return acc


@triton.jit
def gated(x, gate, EXACT: tl.constexpr):
    """Return ``x sigmoid(gate)``, in float32 to the last bits if EXACT."""
    if EXACT:
        exponent = tl.clamp(-gate, _LOWEST, -_LOWEST, propagate_nan=tl.PropagateNan.ALL)
        y = exact_quotient(x, 1 + exp_of_normal(exponent))
    else:
        root = tl.rsqrt(1 + tl.exp2(-LOG2_E * gate))  # takes fewer instructions than a quotient
        y = x * (root * root)
    return y
