"""Normalization, gates and weights of blocks of rows inside kernels."""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def normalize(x, weight_ptr, bias_ptr, channel, channels, EPS: tl.constexpr, AXIS: tl.constexpr):
    """Normalize a float32 block over all channels, which lie along ``AXIS``; the rest become zero.

    The bias may be None. ``channel`` are the indices of the channels; those from ``channels`` on
    are zero in ``x``.
    """
    inside = channel < channels
    weight = tl.load(weight_ptr + channel, inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, AXIS) / channels
    other: tl.constexpr = 1 - AXIS
    centered = x - tl.expand_dims(mean, AXIS)
    centered = tl.where(tl.expand_dims(inside, other), centered, 0.0)
    variance = tl.sum(centered * centered, AXIS) / channels
    scaled = centered * tl.expand_dims(1 / tl.sqrt(variance + EPS), AXIS)
    scaled *= tl.expand_dims(weight, other)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + channel, inside, other=0.0).to(tl.float32)
        scaled += tl.expand_dims(bias, other)
    return scaled


@triton.jit
def gated(x, gate):
    """Return ``x sigmoid(gate)``."""
    exponent = tl.minimum(-_LOG2_E * gate, 126.0, propagate_nan=tl.PropagateNan.ALL)
    return x / (1 + tl.exp2(exponent))


@triton.jit
def load_weight(weight_ptr, row, column, n_rows, n_columns, M: tl.constexpr, K: tl.constexpr):
    """Load a block [M, K] of a weight [n_rows, n_columns], zero beyond its ends."""
    rows, columns = row + tl.arange(0, M), column + tl.arange(0, K)
    inside = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    return tl.load(weight_ptr + rows[:, None] * n_columns + columns[None, :], inside, other=0.0)
