"""Arithmetic on registers that hold two 16-bit integers, or one of 32 bits.

Recent GPUs add and compare both halves of a register at once, and select bytes from two registers.
Where Triton has no function for this, kernels name instructions of the vendor; the interpreter
processes the halves separately. With PACKED false, a register holds one integer.

If both halves stay within 0 and 32767, no carry passes between them. Then ``+`` and ``-`` of whole
registers are correct, and they use other units of the GPU than comparisons do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def target() -> str:
    """Return the instruction set that kernels may name: "cuda", "hip", or "plain" for none."""
    if triton.knobs.runtime.interpret:
        return "plain"
    return "cuda" if torch.version.hip is None else "hip"


def packs(tensor: Tensor) -> bool:
    """Return True if the tensor's GPU has instructions for halves of registers."""
    if not tensor.is_cuda or torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(tensor.device) >= (9, 0)


@triton.jit
def halves(x):
    """Return both halves of a register, lower half first."""
    return (x << 16) >> 16, x >> 16


@triton.jit
def joined(low, high, PACKED: tl.constexpr):
    """Pack two integers into one register. Unless PACKED, return the first."""
    return (low & 0xFFFF) | (high << 16) if PACKED else low


@triton.jit
def taken_apart(x, PACKED: tl.constexpr):
    """Return both integers of a register. Unless PACKED, return the one integer twice."""
    if PACKED:
        low, high = halves(x)
    else:
        low = x
        high = x
    return low, high


@triton.jit
def larger(a, b, PACKED: tl.constexpr, TARGET: tl.constexpr):
    """Return ``max(a, b)``."""
    if not PACKED:
        c = tl.maximum(a, b)
    elif TARGET == "cuda":
        c = tl.inline_asm_elementwise("max.s16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)
    elif TARGET == "hip":
        c = tl.inline_asm_elementwise(
            "v_pk_max_i16 $0, $1, $2", "=v,v,v", [a, b], tl.int32, True, 1
        )
    else:
        a0, a1 = halves(a)
        b0, b1 = halves(b)
        c = joined(tl.maximum(a0, b0), tl.maximum(a1, b1), True)
    return c


@triton.jit
def larger_sum(a, b, c, PACKED: tl.constexpr, TARGET: tl.constexpr):
    """Return ``max(a + b, c)``, for halves of any sign; one instruction on recent GPUs."""
    if not PACKED:
        d = tl.maximum(a + b, c)
    elif TARGET == "cuda":
        d = tl.inline_asm_elementwise(
            "{ .reg .b32 t; add.s16x2 t, $1, $2; max.s16x2 $0, t, $3; }",
            "=r,r,r,r",
            [a, b, c],
            tl.int32,
            True,
            1,
        )
    elif TARGET == "hip":
        t = tl.inline_asm_elementwise(
            "v_pk_add_i16 $0, $1, $2", "=v,v,v", [a, b], tl.int32, True, 1
        )
        d = larger(t, c, PACKED, TARGET)
    else:
        a0, a1 = halves(a)
        b0, b1 = halves(b)
        c0, c1 = halves(c)
        d = joined(tl.maximum(a0 + b0, c0), tl.maximum(a1 + b1, c1), True)
    return d


@triton.jit
def _picked(first, second, selector, INDEX: tl.constexpr):
    """Compute one byte of `pick`."""
    nibble = (selector >> (4 * INDEX)) & 15
    source = tl.where((nibble & 4) > 0, second, first)
    byte = (source >> (8 * (nibble & 3))) & 255
    byte = tl.where((nibble & 8) > 0, tl.where(byte > 127, 255, 0), byte)
    return byte << (8 * INDEX)


@triton.jit
def pick(first, second, selector, TARGET: tl.constexpr):
    """Select four of the eight bytes of two registers, one for each nibble of the selector.

    If a nibble's highest bit is set, its byte is filled with the sign of the selected one.
    """
    if TARGET == "cuda":
        c = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [first, second, selector], tl.int32, True, 1
        )
    else:
        c = _picked(first, second, selector, 0) | _picked(first, second, selector, 1)
        c |= _picked(first, second, selector, 2) | _picked(first, second, selector, 3)
    return c


@triton.jit
def chained(values, more):
    """Concatenate two tuples."""
    return values + more


@triton.jit
def appended(values, value):
    """Append a value to a tuple."""
    return values + (value,)  # noqa: RUF005 - Triton does not unpack


@triton.jit
def columns_of(block, LANES: tl.constexpr, COLUMNS: tl.constexpr):
    """Split a block [LANES, COLUMNS] into columns [LANES]; COLUMNS is a power of two up to 32."""
    parts = appended((), block)
    for _ in tl.static_range(5):
        if len(parts) < COLUMNS:
            evens = ()
            odds = ()
            for p in tl.static_range(len(parts)):
                pairs = tl.reshape(parts[p], (LANES, COLUMNS // len(parts) // 2, 2))
                even, odd = tl.split(pairs)
                evens = appended(evens, even)
                odds = appended(odds, odd)
            parts = chained(evens, odds)
    columns = ()
    for p in tl.static_range(COLUMNS):
        columns = appended(columns, tl.reshape(parts[p], (LANES,)))
    return columns


@triton.jit
def block_of(columns, LANES: tl.constexpr, COLUMNS: tl.constexpr):
    """Join columns [LANES] into a block [LANES, COLUMNS], padded with the first column."""
    parts = columns
    for _ in tl.static_range(len(columns), COLUMNS):
        parts = appended(parts, columns[0])
    for _ in tl.static_range(5):
        if len(parts) > 1:
            joint = ()
            for p in tl.static_range(len(parts) // 2):
                both = tl.join(parts[p], parts[p + len(parts) // 2])
                both = tl.reshape(both, (LANES, 2 * (COLUMNS // len(parts))))
                joint = appended(joint, both)
            parts = joint
    return parts[0]
