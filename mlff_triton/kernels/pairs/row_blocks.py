"""Normalized rows, their products with weights, and gates, inside kernels.

Products of rows in float32 are sums over chunks of channels. Splitting float32 operands for tensor
cores takes registers for three times the rows, so that few channels fit at a time. Sums of chunks
are added in float32, because tensor cores truncate theirs (https://doi.org/10.7717/peerj-cs.330).

Fast instructions for powers of two and quotients err in the last two bits, and a rounded exponent
adds to that. This shows in float32 alone, where exact ones replace them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E = tl.constexpr(1.4426950408889634)
_LOG2_E_REST = tl.constexpr(1.92596298909109e-08)  # what float32 leaves of it
_LN_2 = tl.constexpr(0.6931471805599453)
_LOWEST = tl.constexpr(-87.0)  # exponentials below are not normal numbers
_CHUNK = 32


def chunk(block: int, weight: Tensor) -> int:
    """Return the channels at a time of products with a weight, for a block of all channels."""
    return min(block, _CHUNK) if weight.dtype == torch.float32 else block


def product_precision(x: Tensor) -> str:
    """Return the precision of `tl.dot` for operators on pairs.

    Three parts in bfloat16 hold all bits of float32, and two in TF32 do not. Six products in
    bfloat16 take tensor cores as long as three in TF32.
    """
    if x.dtype != torch.float32 or torch.version.hip is not None or triton.knobs.runtime.interpret:
        return "ieee"
    return "bf16x6"


@triton.jit
def load_rows(x_ptr, offsets, inside, channel, channels, stride):
    """Load float32 rows [M, C] at ``offsets`` [M]; channels are ``stride`` elements apart."""
    mask = inside[:, None] & (channel < channels)[None, :]
    pointers = x_ptr + offsets[:, None] + channel.to(tl.int64)[None, :] * stride
    return tl.load(pointers, mask, other=0.0).to(tl.float32)


@triton.jit
def moments(x, channel, channels, EPS: tl.constexpr):
    """Return mean and inverse standard deviation of rows [M, C], zero from ``channels`` on."""
    mean = tl.div_rn(tl.sum(x, 1), channels * 1.0)
    centered = tl.where((channel < channels)[None, :], x - mean[:, None], 0.0)
    variance = tl.div_rn(tl.sum(centered * centered, 1), channels * 1.0)
    return mean, tl.div_rn(1.0, tl.sqrt_rn(variance + EPS))


@triton.jit
def normalize(x, mean, rstd, weight_ptr, bias_ptr, channel, channels):
    """Normalize rows [M, C]. Weight and bias are [channels], and the bias may be None."""
    inside = channel < channels
    weight = tl.load(weight_ptr + channel, inside, other=0.0).to(tl.float32)
    x = (x - mean[:, None]) * rstd[:, None] * weight[None, :]
    if bias_ptr is not None:
        x += tl.load(bias_ptr + channel, inside, other=0.0).to(tl.float32)[None, :]
    return x


@triton.jit
def load_weight(weight_ptr, row, column, n_rows, n_columns, M: tl.constexpr, K: tl.constexpr):
    """Load a block [M, K] of a weight [n_rows, n_columns], zero beyond its ends."""
    rows, columns = row + tl.arange(0, M), column + tl.arange(0, K)
    inside = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    return tl.load(weight_ptr + rows[:, None] * n_columns + columns[None, :], inside, other=0.0)


@triton.jit
def _multiply(x, weight, PRECISION: tl.constexpr, TURNED: tl.constexpr):
    """Return ``x weight^T``, or its transpose if TURNED."""
    if TURNED:
        y = tl.dot(weight, x.T, input_precision=PRECISION)
    else:
        y = tl.dot(x, weight.T, input_precision=PRECISION)
    return y


@triton.jit
def normalized_product(
    x,
    x_ptr,
    offsets,
    inside,
    stride,
    mean,
    rstd,
    norm_weight_ptr,
    norm_bias_ptr,
    weight_ptr,
    first,
    n_out,
    channels,
    PRECISION: tl.constexpr,
    TURNED: tl.constexpr,
    CHUNK: tl.constexpr,
    K: tl.constexpr,
):
    """Multiply normalized rows by K rows of a weight [n_out, channels], from ``first`` on.

    The result is [M, K], or [K, M] if TURNED. If all channels are one chunk, ``x`` [M, CHUNK] are
    the rows, and otherwise these are loaded and normalized anew, chunk by chunk.
    """
    if x.shape[1] == CHUNK:
        weight = load_weight(weight_ptr, first, 0, n_out, channels, K, CHUNK)
        y = _multiply(x, weight, PRECISION, TURNED)
    else:
        M: tl.constexpr = x.shape[0]
        y = tl.zeros((K, M) if TURNED else (M, K), tl.float32)
        for start in range(0, channels, CHUNK):
            channel = start + tl.arange(0, CHUNK)
            part = load_rows(x_ptr, offsets, inside, channel, channels, stride)
            part = normalize(part, mean, rstd, norm_weight_ptr, norm_bias_ptr, channel, channels)
            weight = load_weight(weight_ptr, first, start, n_out, channels, K, CHUNK)
            y += _multiply(part.to(weight.dtype), weight, PRECISION, TURNED)
    return y


@triton.jit
def exact_exp(x):
    """Return exponentials of float32 values up to 87, to the last bits; zero below -87."""
    raised = tl.maximum(x, _LOWEST, propagate_nan=tl.PropagateNan.ALL)
    exponent = _LOG2_E * raised
    rest = tl.fma(raised, _LOG2_E_REST, tl.fma(raised, _LOG2_E, -exponent))
    power = tl.exp2(exponent)
    return tl.where(x < _LOWEST, 0.0, tl.fma(power, _LN_2 * rest, power))


@triton.jit
def gated(x, gate, EXACT: tl.constexpr):
    """Return ``x sigmoid(gate)``, in float32 to the last bits if EXACT."""
    if EXACT:
        exponent = tl.minimum(-gate, -_LOWEST, propagate_nan=tl.PropagateNan.ALL)
        y = tl.div_rn(x, 1 + exact_exp(exponent))
    else:
        exponent = tl.minimum(-_LOG2_E * gate, 126.0, propagate_nan=tl.PropagateNan.ALL)
        y = x / (1 + tl.exp2(exponent))
    return y
