"""Halves of operators on pairs in float32, for which see `mlff_triton.kernels.common.halves`.

Rows that may exceed 65504 are scaled by a power of two. NVIDIA's tensor cores truncate sums
(https://doi.org/10.7717/peerj-cs.330). So sums of a few products are added in float32, and the
fraction that they lose on average is restored. These losses all have the same sign, so they would
add up over successive operators.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.halves import split_halves

_BLOCK = 1024
_FEWEST_CHANNELS = 64
_TRUNCATES = tl.constexpr(torch.version.hip is None and not triton.knobs.runtime.interpret)


@triton.jit
def row_scales(x):
    """Return powers of two that scale rows [M, K] to at most two, and their inverses, both [M]."""
    largest = tl.max(tl.abs(x).to(tl.int32, bitcast=True), 1)
    exponent = tl.minimum(tl.maximum(largest >> 23, 1), 253)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def untruncated(sums, K: tl.constexpr):
    """Restore what sums of K float32 products of halves on tensor cores lose on average.

    As measured on an H100 with random factors, that is 5.5e-8 of sums of 32 products, 8.9e-8 of 64
    and 1.5e-7 of 128. The results are rounded, so the fractions here differ from these.
    """
    FRACTION: tl.constexpr = 4.7e-8 if K <= 32 else 6e-8 if K <= 64 else 1.6e-7
    if _TRUNCATES:
        sums = tl.fma(sums, FRACTION, sums)
    return sums


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

    Halves lack one bit of float32. This shows in sums of few products, which take three parts in
    bfloat16 instead: see `mlff_triton.kernels.pairs.row_blocks.FULL`.
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
