"""Maxima of pairs of neighboring positions, activated as the next layers need them.

    activated_s = gelu(a x_s + b)
    y_s = max(x_2s, x_(2s+1))      z_s = gelu(c y_s + d)      gelu(u) = u sigmoid(1.702 u)

Source: Ž. Avsec et al., "Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import gelu_sigmoid
from mlff_triton.kernels.genomics.types import Activation, PairMaxima

_PAIRS, _COLUMNS, _WARPS = 16, 128, 4  # per program


@triton.jit
def _store_activated(ptr, x, offsets, mask, scale_ptr, shift_ptr, columns, C):
    """Normalize and activate a block [M, N], and store it."""
    scale = tl.load(scale_ptr + columns, columns < C, other=0.0)
    shift = tl.load(shift_ptr + columns, columns < C, other=0.0)
    x = gelu_sigmoid(x * scale[None, :] + shift[None, :])
    tl.store(ptr + offsets, x.to(ptr.dtype.element_ty), mask)


@triton.jit
def _pair_maxima_fwd_kernel(
    x_ptr,
    rows_ptr,
    next_ptr,
    next_scale_ptr,
    next_shift_ptr,
    skip_ptr,
    skip_scale_ptr,
    skip_shift_ptr,
    n_pairs,
    C,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Write rows and next [n_pairs, C], and skip [2 n_pairs, C], from x [2 n_pairs, C].

    Grid: (blocks of M pairs times blocks of N columns,).
    """
    n_blocks = tl.cdiv(C, N)
    columns = tl.program_id(0) % n_blocks * N + tl.arange(0, N)
    pair = (tl.program_id(0) // n_blocks).to(tl.int64) * M + tl.arange(0, M)
    mask = (pair < n_pairs)[:, None] & (columns < C)[None, :]
    first = 2 * pair[:, None] * C + columns[None, :]
    a = tl.load(x_ptr + first, mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + first + C, mask, other=0.0).to(tl.float32)
    largest = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    offsets = pair[:, None] * C + columns[None, :]
    tl.store(rows_ptr + offsets, largest.to(rows_ptr.dtype.element_ty), mask)
    if next_ptr is not None:
        _store_activated(
            next_ptr, largest, offsets, mask, next_scale_ptr, next_shift_ptr, columns, C
        )
    if skip_ptr is not None:
        _store_activated(skip_ptr, a, first, mask, skip_scale_ptr, skip_shift_ptr, columns, C)
        _store_activated(skip_ptr, b, first + C, mask, skip_scale_ptr, skip_shift_ptr, columns, C)


def pair_maxima(
    x: Tensor, activation: Activation | None = None, skip: Activation | None = None
) -> PairMaxima:
    """Take the maximum of each pair of positions, and activate the results, without gradients.

    Parameters
    ----------
    x : [B, S, C]
        Positions, contiguous; S is even.
    activation : Activation, optional
        Normalization of the maxima. They are returned activated if it is given.
    skip : Activation, optional
        Normalization of all positions. They are returned activated if it is given.

    Returns
    -------
    PairMaxima
        Maxima and activated rows, of the dtype of ``x``.
    """
    batch, length, channels = x.shape
    rows = x.new_empty(batch, length // 2, channels)
    following = None if activation is None else torch.empty_like(rows)
    skipped = None if skip is None else torch.empty_like(x)
    n_pairs = batch * length // 2
    n_programs = triton.cdiv(channels, _COLUMNS) * triton.cdiv(n_pairs, _PAIRS)
    with torch.cuda.device_of(x):
        _pair_maxima_fwd_kernel[(n_programs,)](
            *(x, rows, following, *(activation or (None, None))),
            *(skipped, *(skip or (None, None))),
            n_pairs,
            channels,
            M=_PAIRS,
            N=_COLUMNS,
            num_warps=_WARPS,
        )
    return PairMaxima(rows, following, skipped)
