"""Linear layers of many rows: large tiles through tensor descriptors, in persistent programs.

    y = epilogue(x W^T + b)

The epilogue is an activation or a rotation of pairs. While it runs for one tile, the blocks of the
next tile are being loaded. Libraries of matrix products offer this only for their own epilogues.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.early_launch import (
    allow_next,
    early_launch,
    launches_early,
    wait_for_previous,
)
from mlff_triton.kernels.common.hardware import multiprocessors
from mlff_triton.kernels.common.tiles import tile_in_group
from mlff_triton.kernels.transformer.rotation import (
    Rotary,
    load_angles,
    rotary_arguments,
    rotate_pairs,
)


@triton.jit
def _product(x, weight, row, column, n_in, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply rows by the transposed weight, and return the tile [M, N] at ``row``, ``column``."""
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, n_in, K):
        acc = tl.dot(x.load([row, start]), weight.load([column, start]).T, acc)
    return acc


@triton.jit
def _finish(
    acc,
    y,
    row,
    column,
    n_rows,
    n_out,
    bias_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    n_positions,
    ROTATED: tl.constexpr,
    HALF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Apply bias, activation and rotation to the product of a tile, and store it."""
    columns = column + tl.arange(0, N)
    acc += tl.load(bias_ptr + columns, columns < n_out, other=0.0).to(tl.float32)[None, :]
    acc = activate(acc, ACTIVATION)
    if ROTATED:  # noqa: SIM102 - resolved at compile time
        if column < ROTATED:
            rows = row + tl.arange(0, M)
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
                tl.float32,
            )
            acc = rotate_pairs(acc, cos, sin, M, N)
    y.store([row, column], acc.to(y.dtype))


@triton.jit(do_not_specialize=["n_rows"])
def _wide_linear_fwd_kernel(
    x,
    weight,
    y,
    bias_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    live_ptr,
    n_positions,
    n_rows,
    n_out,
    n_in,
    PROGRAMS: tl.constexpr,
    ROTATED: tl.constexpr,
    HALF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    STORE_HALVES: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write rows y [n_rows, n_out].

    x [n_rows, n_in], weight [n_out, n_in] and y are tensor descriptors. The bias is [n_out]; for
    the angles, see `load_angles`. Tiles without a row before ``live`` [1] are not written. Grid:
    (PROGRAMS,). A program takes every PROGRAMS-th tile of M rows and N columns.
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    if live_ptr is not None:
        n_rows = tl.minimum(n_rows, tl.load(live_ptr))
    tiles_m, tiles_n = tl.cdiv(n_rows, M), tl.cdiv(n_out, N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        tile = tl.cast(tile, tl.int32)  # noqa: PLW2901 - a Python integer under the interpreter
        tile_m, tile_n = tile_in_group(tile, tiles_m, tiles_n)
        row, column = tile_m * M, tile_n * N
        acc = _product(x, weight, row, column, n_in, M, N, K)
        if STORE_HALVES:
            # Storing half a tile at a time needs half the shared memory.
            parts = tl.split(tl.permute(tl.reshape(acc, (M, 2, N // 2)), (0, 2, 1)))
        else:
            parts = (acc,)
        width: tl.constexpr = N // (1 + STORE_HALVES)
        for part in tl.static_range(1 + STORE_HALVES):
            _finish(
                parts[part],
                y,
                row,
                column + part * width,
                n_rows,
                n_out,
                bias_ptr,
                cos_ptr,
                sin_ptr,
                position_ptr,
                n_positions,
                ROTATED,
                HALF,
                ACTIVATION,
                M,
                width,
            )


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    rows: int
    columns: int
    warps: int
    stages: int
    programs: int  # per multiprocessor


_INNER = 64


def _tile(n_rows: int, n_out: int, n_in: int, rotated: bool) -> Tile:
    """Return the fastest tile on an NVIDIA H200: a large one for many tiles and long sums."""
    tiles = triton.cdiv(n_rows, 128) * triton.cdiv(n_out, 256)
    if rotated and tiles >= 100:
        return Tile(128, 256, 8, 3, 1)  # the rotation needs shared memory, too
    if n_in >= 512 and tiles >= 264:
        return Tile(128, 256, 8, 4, 1)
    return Tile(64, 128, 4, 4, 2) if n_rows <= 1024 else Tile(128, 128, 8, 4, 1)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Return True if `wide_linear` supports the inputs and the GPU.

    It needs half precision, rows aligned to 16 bytes, and Hopper or later.
    """
    n_out, n_in = weight.shape
    served = x.element_size() == 2 and not n_out % 8 and not n_in % 8 and len(x) > 0
    return served and (launches_early(x) or not x.is_cuda)


def wide_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    live: Tensor | None,
    *,
    activation: str = "none",
    rotary: Rotary | None = None,
) -> Tensor:
    """Apply a linear layer to many packed rows in half precision, without gradients.

    Parameters
    ----------
    x : [T, K]
        Rows, contiguous, float16 or bfloat16; see `fits`.
    weight, bias : [N, K], [N]
        Weight and bias, of the dtype of ``x``.
    live : int32 [1] or None
        Number of leading rows to compute, read on the device; all if None. Tiles are written as a
        whole, so some rows after them are written, too. All other rows are uninitialized.
    activation : str
        As for `mlff_triton.kernels.ops.linear.linear`.
    rotary : Rotary, optional
        Rotation of the leading columns, applied last.

    Returns
    -------
    [T, N]
        New rows, of the dtype of ``x``.
    """
    n_out, n_in = weight.shape
    tile = _tile(len(x), n_out, n_in, rotary is not None)
    return launch_wide_linear(x, weight, bias, live, activation, rotary, tile)


def launch_wide_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    live: Tensor | None,
    activation: str,
    rotary: Rotary | None,
    tile: Tile,
) -> Tensor:
    """Run `wide_linear` with the given block sizes."""
    n_rows, n_in = x.shape
    n_out = len(weight)
    y = x.new_empty(n_rows, n_out)
    (*angles, n_positions), options = rotary_arguments(rotary)
    tiles = triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_out, tile.columns)
    store_halves = tile.columns * tile.programs > 128
    programs = min(multiprocessors(x.device) * tile.programs, tiles)
    with torch.cuda.device_of(x):
        _wide_linear_fwd_kernel[(programs,)](
            TensorDescriptor.from_tensor(x, [tile.rows, _INNER]),
            TensorDescriptor.from_tensor(weight, [tile.columns, _INNER]),
            TensorDescriptor.from_tensor(y, [tile.rows, tile.columns // (1 + store_halves)]),
            bias,
            *angles,
            live,
            n_positions,
            n_rows,
            n_out,
            n_in,
            PROGRAMS=programs,
            **options,
            ACTIVATION="gelu_half" if activation == "gelu" else activation,
            STORE_HALVES=store_halves,
            M=tile.rows,
            N=tile.columns,
            K=_INNER,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **early_launch(x),
        )
    return y
