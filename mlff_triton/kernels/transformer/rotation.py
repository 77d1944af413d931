"""Rotation of adjacent pairs of columns inside kernels: rotary position embeddings.

    (a, b) <- (a cos - b sin, b cos + a sin)      angle = position * frequency

J. Su et al., "RoFormer", https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Rotary(NamedTuple):
    """Rotary position embeddings of queries and keys whose pairs are adjacent columns.

    Attributes
    ----------
    cos, sin : [P, D / 2]
        Cosine and sine of position times frequency, float32 or float64.
    position : int32 or int64 [T]
        Position of each row.
    columns : int
        Number of leading columns to rotate.
    """

    cos: Tensor
    sin: Tensor
    position: Tensor
    columns: int


def rotary_arguments(rotary: Rotary | None) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Return launch arguments for a rotation, positional and by name.

    The positional arguments are the tables of cosines and sines, the positions and the length of
    the tables.
    """
    if rotary is None:
        return (None, None, None, 1), {"ROTATED": 0, "HALF": 1}
    cos, sin, position, columns = rotary
    return (cos, sin, position, len(cos)), {"ROTATED": columns, "HALF": cos.shape[1]}


@triton.jit
def load_angles(
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
    """Load cosines and sines [M, N / 2] for the pairs of a block whose first column is ``column``.

    Unused rows may hold any position, so positions are clamped to the tables.
    """
    pair = column // 2 + tl.arange(0, N // 2)
    rotated = inside[:, None] & (pair < ROTATED // 2)[None, :]
    position = tl.load(position_ptr + rows, inside, other=0)
    position = tl.minimum(tl.maximum(position, 0), n_positions - 1)
    offsets = position[:, None] * HALF + (pair % HALF)[None, :]
    cos = tl.load(cos_ptr + offsets, rotated, other=1.0).to(ACCUMULATE)
    return cos, tl.load(sin_ptr + offsets, rotated, other=0.0).to(ACCUMULATE)


@triton.jit
def rotate_pairs(x, cos, sin, M: tl.constexpr, N: tl.constexpr):
    """Rotate the pairs of a block [M, N] by angles [M, N / 2]."""
    a, b = tl.split(tl.reshape(x, (M, N // 2, 2)))
    return tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (M, N))
