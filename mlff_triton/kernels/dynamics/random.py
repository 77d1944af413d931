"""Random numbers that depend only on their counters, not on anything drawn before.

Philox 4x32-10 (J. K. Salmon et al., SC 2011, https://doi.org/10.1145/2063384.2063405) encrypts four
counters with a key, the seed. The counters are the step, the purpose, the atom and the stream. So
numbers may be drawn for atoms in any order, and again for a step that is repeated.
"""

from __future__ import annotations

import triton
import triton.language as tl

THERMOSTAT, RESCALING, BAROSTAT = (tl.constexpr(purpose) for purpose in range(3))
"""Purposes of random numbers. Numbers of a system count attempts instead of atoms."""


@triton.jit
def _uniform(bits):
    """Convert 32 random bits to float64 between 0 and 1, both excluded."""
    return (bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2^-32


@triton.jit
def uniforms(seed, step, PURPOSE: tl.constexpr, item, stream):
    """Draw four uniform float64 numbers per item, int32 [BLOCK]."""
    zero = item * 0
    low = zero + (step & 0x7FFFFFFF).to(tl.int32)
    high = zero + ((step >> 31).to(tl.int32) << 8 | PURPOSE)
    a, b, c, d = tl.philox(seed, low, high, item, zero + stream)
    return _uniform(a), _uniform(b), _uniform(c), _uniform(d)


@triton.jit
def normals(seed, step, PURPOSE: tl.constexpr, item, stream):
    """Draw four standard normal float64 numbers per item, by the method of Box and Muller."""
    a, b, c, d = uniforms(seed, step, PURPOSE, item, stream)
    r, s = tl.sqrt(-2 * tl.log(a)), tl.sqrt(-2 * tl.log(c))
    u, v = 6.283185307179586 * b, 6.283185307179586 * d
    return r * tl.cos(u), r * tl.sin(u), s * tl.cos(v), s * tl.sin(v)


@triton.jit
def thermal_energy(temperature_ptr, system, step):
    """Return ``kT`` of a system at a step."""
    slope = tl.load(temperature_ptr + 2 * system + 1)
    return tl.fma(slope, step.to(tl.float64), tl.load(temperature_ptr + 2 * system))
