"""Arithmetic of lanes that hold two 16-bit numbers each, or one of 32 bits.

Recent GPUs add and compare both halves of a register at once, and pick bytes out of two registers.
Where Triton has no word for that, vendors' instructions are named; its interpreter takes halves
apart. A lane that is not PACKED holds one number, and calculates as usual.

Two halves that stay within 0 and 32767 never carry into one another, so that ``+`` and ``-`` of
whole registers do for them, which other units of a GPU calculate than those of comparisons.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def target() -> str:
    """Whose instructions kernels may name: ``"cuda"``, ``"hip"``, or of nobody, ``"plain"``."""
    if triton.knobs.runtime.interpret:
        return "plain"
    return "cuda" if torch.version.hip is None else "hip"


def packs(tensor: Tensor) -> bool:
    """Whether the tensor's GPU has instructions for halves of registers."""
    if not tensor.is_cuda or torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(tensor.device) >= (9, 0)


@triton.jit
def halves(x):
    """The numbers of a register, lower first."""
    return (x << 16) >> 16, x >> 16


@triton.jit
def joined(low, high, PACKED: tl.constexpr):
    """Two numbers in one register; the first alone if lanes hold one."""
    return (low & 0xFFFF) | (high << 16) if PACKED else low


@triton.jit
def taken_apart(x, PACKED: tl.constexpr):
    """The numbers of a register; the same one twice if it holds one."""
    if PACKED:
        low, high = halves(x)
    else:
        low = x
        high = x
    return low, high


@triton.jit
def larger(a, b, PACKED: tl.constexpr, TARGET: tl.constexpr):
    """``max(a, b)``."""
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
    """``max(a + b, c)`` of any halves, one instruction of recent GPUs."""
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
def _picked(first, second, selector, PLACE: tl.constexpr):
    nibble = (selector >> (4 * PLACE)) & 15
    source = tl.where((nibble & 4) > 0, second, first)
    byte = (source >> (8 * (nibble & 3))) & 255
    byte = tl.where((nibble & 8) > 0, tl.where(byte > 127, 255, 0), byte)
    return byte << (8 * PLACE)


@triton.jit
def pick(first, second, selector, TARGET: tl.constexpr):
    """Four of the eight bytes of two registers: a nibble of the selector says which.

    Where its highest bit is set, the byte is filled with the sign of the one it says.
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
    """The values of two tuples."""
    return values + more


@triton.jit
def appended(values, value):
    """A tuple with one value more."""
    return values + (value,)  # noqa: RUF005 - Triton does not unpack


@triton.jit
def columns_of(block, LANES: tl.constexpr, COLUMNS: tl.constexpr):
    """The columns [LANES] of a block [LANES, COLUMNS], a power of two up to 32."""
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
    """A block [LANES, COLUMNS] of columns; the first one again where there are less."""
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
