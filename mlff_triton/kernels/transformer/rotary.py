"""Rotary position embeddings of packed rows, in place.

    (a, b) <- (a cos - b sin, b cos + a sin)      angle = position * frequency

for pairs (a, b) of adjacent columns: J. Su et al., "RoFormer", https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous
from mlff_triton.kernels.transformer.rotation import (
    Rotary,
    load_angles,
    rotary_arguments,
    rotate_pairs,
)


@triton.jit(do_not_specialize=["n_rows"])
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
    EARLY_LAUNCH: tl.constexpr,
    ROTATED: tl.constexpr,
    HALF: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Rotate the first ROTATED columns of rows x [n_rows, width] in place.

    The tables of cosines and sines are [n_positions, HALF], the positions [n_rows]. Rows from
    ``live`` [1] on are not changed. Grid: (row blocks of M, column blocks of N).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    if live_ptr is not None:
        n_rows = tl.minimum(n_rows, tl.load(live_ptr))
    rows = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column = tl.program_id(1) * N
    columns = column + tl.arange(0, N)
    mask = (rows < n_rows)[:, None] & (columns < ROTATED)[None, :]
    pointers = x_ptr + rows[:, None] * width + columns[None, :]
    x = tl.load(pointers, mask, other=0.0).to(ACCUMULATE)
    cos, sin = load_angles(
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
    x = rotate_pairs(x, cos, sin, M, N)
    tl.store(pointers, x.to(x_ptr.dtype.element_ty), mask)


def rotary_(x: Tensor, rotary: Rotary, live: Tensor | None) -> Tensor:
    """Rotate the leading columns of packed rows in place.

    Parameters
    ----------
    x : [T, N]
        Rows, contiguous; modified in place.
    rotary : Rotary
        Angles, positions, and the number of columns to rotate.
    live : int32 [1] or None
        Number of leading rows to rotate, read on the device; all if None.

    Returns
    -------
    [T, N]
        ``x``.
    """
    n_rows, width = x.shape
    rows, columns = 8, 256
    (*angles, n_positions), options = rotary_arguments(rotary)
    with torch.cuda.device_of(x):
        _rotary_kernel[(triton.cdiv(n_rows, rows), triton.cdiv(rotary.columns, columns))](
            x,
            *angles,
            live,
            n_positions,
            n_rows,
            width,
            ACCUMULATE=accumulator(x),
            **options,
            M=rows,
            N=columns,
            num_warps=4,
            **early_launch(x),
        )
    return x
