"""Counts of kept and masked tokens in padded batches, for `token_embedding`.

The row of a token is the number of kept tokens before it. In small batches, every program counts
them for its first token. In large batches, that would take longer than a launch, so a kernel first
counts the tokens of every sequence.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.transformer.reference.token_embedding import TRAINED_WITH

_TRAINED_WITH = tl.constexpr(TRAINED_WITH)


@triton.jit
def _count_equal(values_ptr, value, first, last, BLOCK: tl.constexpr):
    """Count the elements equal to ``value`` from index ``first`` to before ``last``."""
    count = tl.zeros((BLOCK,), tl.int32)
    for start in range(first, last, BLOCK):
        index = start + tl.arange(0, BLOCK)
        values = tl.load(values_ptr + index, index < last, other=0)
        count += ((values == value) & (index < last)).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _sum_before(values_ptr, last, BLOCK: tl.constexpr):
    """Sum the elements before index ``last``."""
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, last, BLOCK):
        index = start + tl.arange(0, BLOCK)
        total += tl.load(values_ptr + index, index < last, other=0)
    return tl.sum(total, 0)


@triton.jit
def _count_sequence(
    ids_ptr, mask_ptr, sequence, length, MASK_TOKEN: tl.constexpr, BLOCK: tl.constexpr
):
    """Count the kept and the masked tokens of a sequence."""
    first = sequence * length
    kept = length
    masked = 0
    if mask_ptr is not None:
        kept = length - _count_equal(mask_ptr, 0, first, first + length, BLOCK)
    if MASK_TOKEN is not None:
        masked = _count_equal(ids_ptr, MASK_TOKEN, first, first + length, BLOCK)
    return kept, masked


@triton.jit
def row_of_first(mask_ptr, counts_ptr, sequence, length, begin, BLOCK: tl.constexpr):
    """Count the kept tokens before position ``begin`` of a sequence and in all earlier ones."""
    first = sequence * length
    row = first + begin
    if mask_ptr is not None:
        if counts_ptr is None:
            row -= _count_equal(mask_ptr, 0, 0, row, BLOCK)
        else:
            padding = _count_equal(mask_ptr, 0, first, row, BLOCK)
            row = begin + _sum_before(counts_ptr, sequence, BLOCK).to(tl.int64) - padding
    return row


@triton.jit
def dropout_scale(
    ids_ptr,
    mask_ptr,
    counts_ptr,
    sequence,
    length,
    MASK_TOKEN: tl.constexpr,
    COUNT_PADDING: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the factor of a sequence's word embeddings: 0.88 / (1 - share of masked tokens)."""
    if counts_ptr is None:
        kept, masked = _count_sequence(ids_ptr, mask_ptr, sequence, length, MASK_TOKEN, BLOCK)
    else:
        kept = tl.load(counts_ptr + sequence)
        masked = tl.load(counts_ptr + tl.num_programs(0) + sequence)
    counted = length if COUNT_PADDING else tl.maximum(kept, 1)
    return _TRAINED_WITH / (1 - masked.to(ACCUMULATE) / counted)


@triton.jit(do_not_specialize=["length"])
def _token_counts_fwd_kernel(
    ids_ptr, mask_ptr, counts_ptr, length, MASK_TOKEN: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the counts [2, B] of kept and of masked tokens in ids and mask [B, length].

    Grid: (B,).
    """
    sequence = tl.program_id(0).to(tl.int64)
    kept, masked = _count_sequence(ids_ptr, mask_ptr, sequence, length, MASK_TOKEN, BLOCK)
    tl.store(counts_ptr + sequence, kept)
    tl.store(counts_ptr + tl.num_programs(0) + sequence, masked)


def launch_counts(ids: Tensor, mask: Tensor | None, mask_token: int | None, block: int) -> Tensor:
    """Return the numbers of kept and of masked tokens per sequence, int32 [2, B]."""
    batch, length = ids.shape
    counts = ids.new_empty(2, batch, dtype=torch.int32)
    with torch.cuda.device_of(ids):
        _token_counts_fwd_kernel[(batch,)](
            ids, mask, counts, length, MASK_TOKEN=mask_token, BLOCK=block
        )
    return counts
