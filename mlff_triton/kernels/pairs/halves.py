"""Float32 values as two halves in float16, whose products take tensor cores.

    x = high + low / 2^11      x y = high high + (low high + high low) / 2^11

The product of both low halves is below the precision of float32 and left out. Scaled by 2^11, low
halves of small numbers stay normal. Values must not exceed 65504, the largest number in float16:
rows that may are scaled by a power of two.

Tensor cores truncate sums (https://doi.org/10.7717/peerj-cs.330), so that sums of a few products
are added in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_UNIT = tl.constexpr(2.0**11)
_1_UNIT = tl.constexpr(2.0**-11)
_BLOCK = 1024
_FEWEST_CHANNELS = 64


@triton.jit
def split_halves(x):
    """Return the high and the low half of float32 values."""
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * _UNIT).to(tl.float16)


@triton.jit
def multiply_halves(a, b):
    """Return the product, in float32, of two matrices given as their high and low halves."""
    low = tl.dot(a[0], b[1], tl.dot(a[1], b[0]))
    return tl.dot(a[0], b[0], low * _1_UNIT)


@triton.jit
def row_scales(x):
    """Return powers of two that scale rows [M, K] to at most two, and their inverses, both [M]."""
    largest = tl.max(tl.abs(x).to(tl.int32, bitcast=True), 1)
    exponent = tl.minimum(tl.maximum(largest >> 23, 1), 253)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def _weight_halves_kernel(weight_ptrs, halves_ptrs, sizes, BLOCK: tl.constexpr):
    """Write the high halves of each weight, and the low ones after them.

    Reads weights [sizes[k]] and writes halves [2, sizes[k]]. Grid: (blocks of the largest weight,).
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for k in tl.static_range(len(weight_ptrs)):
        inside = place < sizes[k]
        high, low = split_halves(tl.load(weight_ptrs[k] + place, inside, other=0.0))
        tl.store(halves_ptrs[k] + place, high, inside)
        tl.store(halves_ptrs[k] + sizes[k] + place, low, inside)


def takes_halves(weight: Tensor) -> bool:
    """Return True if products with a weight [..., C] are those of halves.

    Halves lack one bit of float32. This shows in sums of few products, which are computed without.
    """
    return weight.dtype == torch.float32 and weight.shape[-1] >= _FEWEST_CHANNELS


def weight_operands(*weights: Tensor, halves: bool) -> list[Tensor]:
    """Return weights as kernels read them, contiguous, or their halves, [2, ...] in float16."""
    contiguous = [weight.contiguous() for weight in weights]
    if not halves:
        return contiguous
    split = [w.new_empty(2, *w.shape, dtype=torch.float16) for w in contiguous]
    sizes = tuple(w.numel() for w in contiguous)
    with torch.cuda.device_of(weights[0]):
        _weight_halves_kernel[(triton.cdiv(max(sizes), _BLOCK),)](
            tuple(contiguous), tuple(split), sizes, BLOCK=_BLOCK
        )
    return split
