"""Random numbers that depend only on counters, see `mlff_triton.kernels.dynamics.random`.

They equal those of `mlff_triton.kernels.dynamics.reference.random`, one item at a time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mlff_triton.kernels.common.cpu.compilation import exact_inlined

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIER0, _MULTIPLIER1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEP0, _STEP1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10


class Source(NamedTuple):
    """Key and counters that all items of a step share.

    Attributes
    ----------
    first, second : uint64
        Halves of the seed.
    low, high : uint64
        Counters: the step, and its highest bits with the purpose.
    """

    first: np.uint64
    second: np.uint64
    low: np.uint64
    high: np.uint64

    @classmethod
    def of(cls, seed: int, step: int, purpose: int) -> Source:
        """Return the source of the random numbers of a step for a purpose."""
        key = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
        counters = step & 0x7FFFFFFF, step >> 31 << 8 | purpose
        return cls(*(np.uint64(value) for value in (*key, *counters)))


@exact_inlined
def uniforms(source, item, stream):
    """Draw four uniform numbers between 0 and 1 for an item, an integer of at least 0."""
    first, second, a, b = source
    c, d = np.uint64(item), np.uint64(stream)
    for _ in range(_ROUNDS):
        x, y = _MULTIPLIER0 * a, _MULTIPLIER1 * c
        a, c = (y >> _HALF) ^ b ^ first, (x >> _HALF) ^ d ^ second
        b, d = y & _LOW, x & _LOW
        first, second = (first + _STEP0) & _LOW, (second + _STEP1) & _LOW
    scale = 2.0**-32
    return (a + 0.5) * scale, (b + 0.5) * scale, (c + 0.5) * scale, (d + 0.5) * scale


@exact_inlined
def normals(source, item, stream):
    """Draw four standard normal numbers for an item."""
    a, b, c, d = uniforms(source, item, stream)
    r, s = math.sqrt(-2 * math.log(a)), math.sqrt(-2 * math.log(c))
    u, v = 2 * math.pi * b, 2 * math.pi * d
    return r * math.cos(u), r * math.sin(u), s * math.cos(v), s * math.sin(v)
