"""Random numbers that depend only on counters, see `mlff_triton.kernels.dynamics.random`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

THERMOSTAT, RESCALING, BAROSTAT, EXCHANGE = range(4)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(seed: int, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Encrypt counters below 2^32, [4, ...], with Philox 4x32-10 into random numbers [4, ...]."""
    a, b, c, d = counters
    first, second = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        x, y = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, c = (y >> _HALF) ^ b ^ np.uint64(first), (x >> _HALF) ^ d ^ np.uint64(second)
        b, d = y & _LOW, x & _LOW
        first, second = (
            key + increment & 0xFFFFFFFF
            for key, increment in zip((first, second), _KEY_STEPS, strict=True)
        )
    return np.stack([a, b, c, d])


def uniforms(seed: int, step: int, purpose: int, item: Tensor, stream: Tensor | int) -> Tensor:
    """Draw four uniform numbers between 0 and 1 per item.

    Parameters
    ----------
    seed : int
        Key of all random numbers.
    step, purpose : int
        Counters of all items.
    item : int [...]
        Counter of each item: an atom of its system, or an attempt.
    stream : int [...] or int
        Number of the stream of each item.

    Returns
    -------
    float64 [4, ...]
    """
    streams = stream.cpu().numpy() if isinstance(stream, Tensor) else np.asarray(stream)
    items, streams = np.broadcast_arrays(item.cpu().numpy(), streams)
    low = np.full(items.shape, step & 0x7FFFFFFF)
    high = np.full(items.shape, step >> 31 << 8 | purpose)
    bits = philox(seed, np.stack([low, high, items, streams]).astype(np.uint64))
    return torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-32).to(item.device)


def normals(seed: int, step: int, purpose: int, item: Tensor, stream: Tensor | int) -> Tensor:
    """Draw four standard normal numbers per item, float64 [4, ...]; arguments as in `uniforms`."""
    a, b, c, d = uniforms(seed, step, purpose, item, stream)
    r, s = (-2 * a.log()).sqrt(), (-2 * c.log()).sqrt()
    u, v = 2 * torch.pi * b, 2 * torch.pi * d
    return torch.stack([r * u.cos(), r * u.sin(), s * v.cos(), s * v.sin()])
