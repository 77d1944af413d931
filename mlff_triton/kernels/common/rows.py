"""What kernels over packed rows of tokens share: rotation of pairs, and launches in a chain."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda


class Rotary(NamedTuple):
    """Rotary position embeddings of queries and keys, whose pairs of numbers lie side by side.

    Attributes
    ----------
    cos, sin : [P, D / 2]
        Of position times frequency, float32 or float64.
    position : int32 or int64 [T]
        Of each row.
    columns : int
        How many, from the first on, are turned.
    """

    cos: Tensor
    sin: Tensor
    position: Tensor
    columns: int


def turning(rotary: Rotary | None) -> tuple[tuple[Any, ...], dict[str, int]]:
    """What launches take of a rotation: cos, sin, position and their number of positions; names."""
    if rotary is None:
        return (None, None, None, 1), {"ROTATED": 0, "HALF": 1}
    cos, sin, position, columns = rotary
    return (cos, sin, position, len(cos)), {"ROTATED": columns, "HALF": cos.shape[1]}


@triton.jit
def angles(
    rows,
    inside,
    column,
    cos_ptr,
    sin_ptr,
    position_ptr,
    n_positions,
    ROTATED: tl.constexpr,
    HALF: tl.constexpr,
    N: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):
    """Cosines and sines [M, N / 2] for the pairs of a tile whose first column is ``column``.

    Rows that mean nothing have any position, so what lies outside of the tables is moved into them.
    """
    pair = column // 2 + tl.arange(0, N // 2)
    turned = inside[:, None] & (pair < ROTATED // 2)[None, :]
    position = tl.load(position_ptr + rows, inside, other=0)
    position = tl.minimum(tl.maximum(position, 0), n_positions - 1)
    at = position[:, None] * HALF + (pair % HALF)[None, :]
    cos = tl.load(cos_ptr + at, turned, other=1.0).to(ACCUMULATE)
    return cos, tl.load(sin_ptr + at, turned, other=0.0).to(ACCUMULATE)


@triton.jit
def turn(x, cos, sin, M: tl.constexpr, N: tl.constexpr):
    """Turn the pairs of a tile [M, N]."""
    a, b = tl.split(tl.reshape(x, (M, N // 2, 2)))
    return tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (M, N))


@triton.jit
def follow(CHAINED: tl.constexpr):
    """Let the next kernel be launched, and wait for what the last one has written."""
    if CHAINED:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


def chain(x: Tensor, *, early: bool = True) -> dict[str, Any]:
    """Options of a launch whose kernel begins with `follow`: early if that pays and the GPU can."""
    if early and launches_early(x):
        return {"CHAINED": True, "launch_pdl": True}
    return {"CHAINED": False}


def launches_early(x: Tensor) -> bool:
    """Whether a kernel can be launched before the one it follows has ended."""
    return x.is_cuda and _launches_early(x.device.index)


@cache
def _launches_early(device: int) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
