"""Rotary position embeddings of packed rows, in place.

    (a, b) <- (a cos - b sin, b cos + a sin)      with position times frequency as the angle

for pairs that lie side by side: J. Su et al., "RoFormer", https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.rows import Rotary, angles, chain, follow, turn, turning


@triton.jit
def _rotary_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    live_ptr,
    n_positions,
    n_rows,
    width,
    ACCUMULATE: tl.constexpr,
    CHAINED: tl.constexpr,
    ROTATED: tl.constexpr,
    HALF: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    follow(CHAINED)
    if live_ptr is not None:
        n_rows = tl.minimum(n_rows, tl.load(live_ptr))
    rows = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column = tl.program_id(1) * N
    columns = column + tl.arange(0, N)
    mask = (rows < n_rows)[:, None] & (columns < ROTATED)[None, :]
    at = x_ptr + rows[:, None] * width + columns[None, :]
    x = tl.load(at, mask, other=0.0).to(ACCUMULATE)
    cos, sin = angles(
        rows,
        rows < n_rows,
        column,
        cos_ptr,
        sin_ptr,
        position_ptr,
        n_positions,
        ROTATED,
        HALF,
        N,
        ACCUMULATE,
    )
    x = turn(x, cos, sin, M, N)
    tl.store(at, x.to(x_ptr.dtype.element_ty), mask)


def rotary_(x: Tensor, rotary: Rotary, live: Tensor | None) -> Tensor:
    """Turn the first columns of rows [T, N], of which only those before ``live`` are alive.

    Parameters
    ----------
    x : [T, N]
        Rows, contiguous; changed in place.
    rotary : Rotary
        How far.
    live : int32 [1] or None
        How many rows mean something; all if None.

    Returns
    -------
    [T, N]
        ``x``.
    """
    n_rows, width = x.shape
    rows, columns = 8, 256
    (*turns, n_positions), options = turning(rotary)
    with torch.cuda.device_of(x):
        _rotary_kernel[(triton.cdiv(n_rows, rows), triton.cdiv(rotary.columns, columns))](
            x,
            *turns,
            live,
            n_positions,
            n_rows,
            width,
            ACCUMULATE=accumulator(x),
            **options,
            M=rows,
            N=columns,
            num_warps=4,
            **chain(x),
        )
    return x
