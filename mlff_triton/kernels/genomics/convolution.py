"""Convolutions along sequences with channels last, as products on tensor cores.

    y_s = b + sum_t W_t x_(s + t - (T - 1) // 2) + r residual_s
    activated = gelu(scale y + shift)          gelu(u) = u sigmoid(1.702 u)

The sum over taps and input channels is one long sum of products of blocks. Tensor descriptors load
the blocks, and read zeros beyond the ends of a sequence. Nothing is computed on the operands, since
the layer before has stored its result activated.

Source: Ž. Avsec et al., "Effective gene expression prediction from sequence by integrating
long-range interactions", https://doi.org/10.1038/s41592-021-01252-x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous
from mlff_triton.kernels.common.tiles import tile_in_group
from mlff_triton.kernels.types.convolution import Activated, Activation

_GELU_EXPONENT = tl.constexpr(-1.702 * 1.4426950408889634)  # times log2(e), for exp2


@triton.jit
def gelu(u):
    """Return ``u sigmoid(1.702 u)``, with one exponential that does not overflow."""
    return u / (1 + tl.exp2(tl.minimum(_GELU_EXPONENT * u, 126.0)))


@triton.jit
def locate(tile, n_sequences, length, n_out, M: tl.constexpr, N: tl.constexpr):
    """Return the sequence, the first row and the first column of a tile, in grouped order."""
    tile = tl.cast(tile, tl.int32)  # a Python integer under the interpreter
    tiles_row = tl.cdiv(length, M)
    tile_m, tile_n = tile_in_group(tile, n_sequences * tiles_row, tl.cdiv(n_out, N))
    return tile_m // tiles_row, tile_m % tiles_row * M, tile_n * N


@triton.jit
def count_tiles(n_sequences, length, n_out, M: tl.constexpr, N: tl.constexpr):
    """Count the tiles of rows [n_sequences, length, n_out]."""
    return n_sequences * tl.cdiv(length, M) * tl.cdiv(n_out, N)


@triton.jit
def _halves(x):
    """Split a block [M, N] into two blocks of neighboring columns."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def describe(
    x,
    n_sequences,
    length,
    columns,
    stride,
    DESCRIBED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Return a descriptor of rows [n_sequences, length, columns] in blocks [M, N]; None for None.

    ``x`` is that if it is DESCRIBED, otherwise a pointer to rows with a stride. Known strides allow
    GPUs without descriptors to load several elements at a time.
    """
    if DESCRIBED:
        rows = x
    elif x is None:
        rows = None
    else:
        rows = tl.make_tensor_descriptor(
            x,
            [n_sequences, length, columns],
            [tl.cast(stride, tl.int64) * length, stride, 1],
            [1, M, N],
        )
    return rows


@triton.jit
def describe_weight(weight, n_out, n_in, DESCRIBED: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Return a descriptor of a weight [n_out, n_in], like `describe`."""
    if DESCRIBED:
        rows = weight
    else:
        rows = tl.make_tensor_descriptor(weight, [n_out, n_in], [n_in, 1], [N, K])
    return rows


@triton.jit
def column_parts(x, PARTS: tl.constexpr):
    """Split a block [M, N] into a tuple of 1, 2 or 4 blocks of neighboring columns.

    Epilogues that finish one part at a time need less shared memory.
    """
    if PARTS == 1:
        parts = (x,)
    elif PARTS == 2:
        parts = _halves(x)
    else:
        left, right = _halves(x)
        parts = _halves(left) + _halves(right)
    return parts


@triton.jit
def load_block(x, batch, row, column):
    """Load a block [M, N] of one sequence."""
    return tl.reshape(x.load([batch, row, column]), (x.block_shape[1], x.block_shape[2]))


@triton.jit
def store_block(y, batch, row, column, block):
    """Store a block [M, N] of one sequence."""
    block = block.to(y.dtype)
    y.store([batch, row, column], tl.reshape(block, (1, block.shape[0], block.shape[1])))


@triton.jit
def store_rows(rows, y, activated, scale_ptr, shift_ptr, batch, row, column, n_out):
    """Store a block [M, N] of rows, as they are and activated, where there is a descriptor."""
    if y is not None:
        store_block(y, batch, row, column, rows)
    if activated is not None:
        columns = column + tl.arange(0, rows.shape[1])
        scale = tl.load(scale_ptr + columns, columns < n_out, other=0.0)
        shift = tl.load(shift_ptr + columns, columns < n_out, other=0.0)
        u = gelu(rows * scale[None, :] + shift[None, :])
        store_block(activated, batch, row, column, u)


@triton.jit
def _load_residual(residual, batch, row, column, DOUBLES: tl.constexpr):
    """Load a block of the residual in float32, with every row twice if it DOUBLES."""
    block = load_block(residual, batch, row // (1 + DOUBLES), column)
    if DOUBLES:
        M: tl.constexpr = block.shape[0]
        N: tl.constexpr = block.shape[1]
        block = tl.reshape(tl.broadcast_to(block[:, None, :], (M, 2, N)), (2 * M, N))
    return block.to(tl.float32)


@triton.jit
def _convolution_kernel(
    x,
    weight,
    residual,
    y,
    activated,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    residual_scale,
    n_sequences,
    length,
    n_out,
    n_in,
    n_added,
    x_stride,
    added_stride,
    activated_stride,
    PROGRAMS: tl.constexpr,
    TAPS: tl.constexpr,
    DOUBLES: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    PARTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write rows y and activated [n_sequences, length, n_out].

    Reads x [n_sequences, length, n_in], weight [n_out, TAPS n_in], and the residual with n_added
    channels, and with DOUBLES half as many rows. For all of these see `describe`. Bias, scale and
    shift are [n_out]. Grid: (PROGRAMS,), each of which takes every
    PROGRAMS-th tile of M rows and N columns, and finishes it in PARTS.
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    n_rows: tl.constexpr = M // (1 + DOUBLES)
    W: tl.constexpr = N // PARTS
    added_length = length // (1 + DOUBLES)
    x = describe(x, n_sequences, length, n_in, x_stride, DESCRIBED, M, K)
    weight = describe_weight(weight, n_out, TAPS * n_in, DESCRIBED, N, K)
    residual = describe(
        residual, n_sequences, added_length, n_added, added_stride, DESCRIBED, n_rows, W
    )
    y = describe(y, n_sequences, length, n_out, n_out, DESCRIBED, M, W)
    activated = describe(activated, n_sequences, length, n_out, activated_stride, DESCRIBED, M, W)
    n_tiles = count_tiles(n_sequences, length, n_out, M, N)
    for tile in tl.range(tl.program_id(0), n_tiles, PROGRAMS, flatten=True):
        batch, row, column = locate(tile, n_sequences, length, n_out, M, N)
        acc = tl.zeros((M, N), tl.float32)
        for step in range(TAPS * tl.cdiv(n_in, K)):
            tap, k = step % TAPS, step // TAPS * K
            block = load_block(x, batch, row + tap - (TAPS - 1) // 2, k)
            acc = tl.dot(block, weight.load([column, tap * n_in + k]).T, acc)
        parts = column_parts(acc, PARTS)
        for part in tl.static_range(PARTS):
            first = column + part * W
            columns = first + tl.arange(0, W)
            bias = tl.load(bias_ptr + columns, columns < n_out, other=0.0)
            rows = parts[part] + bias.to(tl.float32)[None, :]
            if residual is not None:
                rows += residual_scale * _load_residual(residual, batch, row, first, DOUBLES)
            store_rows(rows, y, activated, scale_ptr, shift_ptr, batch, row, first, n_out)


@triton.jit
def _sequence_windows_kernel(
    x_ptr,
    out_ptr,
    n_rows,
    length,
    stride,
    n_columns,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Write windows of x [n_rows, CHANNELS] to rows of ``out`` with a stride and n_columns.

    Grid: (blocks of M rows,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)[:, None]
    column = tl.arange(0, N)[None, :]
    shift = column // CHANNELS - (TAPS - 1) // 2
    position = row % length + shift
    inside = (row < n_rows) & (position >= 0) & (position < length) & (column < TAPS * CHANNELS)
    offsets = (row + shift) * CHANNELS + column % CHANNELS
    window = tl.load(x_ptr + offsets, inside, other=0.0)  # [M, N]
    mask = (row < n_rows) & (column < n_columns)
    tl.store(out_ptr + row * stride + column, window.to(out_ptr.dtype.element_ty), mask)


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    rows: int
    columns: int
    inner: int
    parts: int
    warps: int
    stages: int
    programs: int  # per multiprocessor


LARGE_MEMORY = 200 * hardware.KIB  # shared memory of Hopper and later
SMALL = Tile(128, 128, 32, 2, 8, 3, 1)  # for any GPU
HALF = Tile(128, 128, 64, 4, 4, 3, 2)  # two per multiprocessor, each while the other one stores

# Time per product of tiles for long sums, relative to the first.
_COSTS = {Tile(128, 256, 64, 4, 8, 4, 1): 1.0, Tile(256, 128, 64, 4, 8, 4, 1): 1.05, HALF: 1.15}


def _tile(x: Tensor, n_out: int, taps: int) -> Tile:
    """Return the tile that gives the busiest multiprocessor the least work, waste included."""
    if hardware.shared_memory(x) < LARGE_MEMORY:
        return SMALL
    if taps == 1:
        return HALF

    def cost(tile: Tile) -> float:
        tiles = _count(tile, x, n_out)
        busiest = triton.cdiv(tiles, hardware.multiprocessors(x.device))
        return float(_COSTS[tile] * busiest * tile.rows * tile.columns)

    return min(_COSTS, key=cost)


def _count(tile: Tile, rows: Tensor, n_out: int) -> int:
    """Count the tiles of a result with as many rows as rows [B, S, .]."""
    tiles = len(rows) * triton.cdiv(rows.shape[1], tile.rows) * triton.cdiv(n_out, tile.columns)
    return int(tiles)


def has_descriptors(x: Tensor) -> bool:
    """Return whether the GPU of ``x`` copies blocks by descriptors: Hopper and later."""
    return bool(early_launch(x)["EARLY_LAUNCH"])


class Launch(NamedTuple):
    """Descriptors, options and number of programs of a launch over rows."""

    tile: Tile
    programs: int
    described: bool

    @classmethod
    def of(cls, tile: Tile, rows: Tensor, n_out: int) -> Launch:
        """Count the programs for rows [B, S, .]."""
        programs = hardware.multiprocessors(rows.device) * tile.programs
        return cls(tile, min(programs, _count(tile, rows, n_out)), has_descriptors(rows))

    def given(self, x: Tensor | None, describe: Callable[..., Any], *sizes: int) -> Any:
        """Return what the kernel gets for ``x``: its description, or itself without descriptors."""
        return describe(x, *sizes) if self.described else x

    def operand(self, x: Tensor) -> TensorDescriptor:
        """Describe rows that are multiplied."""
        return TensorDescriptor.from_tensor(x, [1, self.tile.rows, self.tile.inner])

    def weight(self, weight: Tensor) -> TensorDescriptor:
        """Describe a weight [N, K]."""
        return TensorDescriptor.from_tensor(weight, [self.tile.columns, self.tile.inner])

    def part(self, x: Tensor | None, rows: int | None = None) -> TensorDescriptor | None:
        """Describe rows that are read or written in parts of a tile, or return None for None."""
        if x is None:
            return None
        columns = self.tile.columns // self.tile.parts
        return TensorDescriptor.from_tensor(x, [1, rows or self.tile.rows, columns])

    @property
    def options(self) -> dict[str, int]:
        """Constants of the kernel and options of the launch."""
        tile = self.tile
        sizes = {"M": tile.rows, "N": tile.columns, "K": tile.inner, "PARTS": tile.parts}
        return sizes | {
            "PROGRAMS": self.programs,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    residual: Tensor | None = None,
    residual_scale: float = 1.0,
    activation: Activation | None = None,
    with_rows: bool = True,
    out: Tensor | None = None,
) -> Activated:
    """Convolve sequences, and normalize and activate the result for the next layer.

    Parameters
    ----------
    x : [B, S, K]
        Rows, float16 or bfloat16, contiguous in the last dimension. The rows of all sequences have
        the same distance, in elements a multiple of 8, and so is K.
    weight : [N, T, K]
        Weights of T taps, contiguous, of the dtype of ``x``; N is a multiple of 8.
    bias : [N]
        Bias.
    residual : [B, S, R] or [B, S / 2, R], optional
        Rows to add to the first R <= N channels, each of them twice if there are half as many; a
        multiple of 8 channels, with strides like those of ``x``.
    residual_scale : float
        Factor of the residual.
    activation : Activation, optional
        Normalization of the next layer. Activated rows are returned if it is given.
    with_rows : bool
        If False, do not return the rows that are not activated.
    out : [B, S, N], optional
        Memory for the activated rows, with strides like those of ``x``.

    Returns
    -------
    Activated
        Rows [B, S, N] of the dtype of ``x``.
    """
    tile = _tile(x, *weight.shape[:2])
    return launch_convolution(
        x, weight, bias, residual, residual_scale, activation, with_rows, out, tile
    )


def launch_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    residual_scale: float,
    activation: Activation | None,
    with_rows: bool,
    out: Tensor | None,
    tile: Tile,
) -> Activated:
    """Run `convolution` with the given block sizes."""
    n_sequences, length, n_in = x.shape
    n_out, taps, _ = weight.shape
    shape = n_sequences, length, n_out
    y = x.new_empty(shape) if with_rows else None
    activated = x.new_empty(shape) if activation is not None and out is None else out
    doubles = residual is not None and residual.shape[1] != length
    launch = Launch.of(tile, x, n_out)
    with torch.cuda.device_of(x):
        _convolution_kernel[(launch.programs,)](
            launch.given(x, launch.operand),
            launch.given(weight.flatten(1), launch.weight),
            launch.given(residual, launch.part, tile.rows // (1 + doubles)),
            launch.given(y, launch.part),
            launch.given(activated, launch.part),
            bias,
            *(activation or (None, None)),
            residual_scale,
            n_sequences,
            length,
            n_out,
            n_in,
            0 if residual is None else residual.shape[2],
            x.stride(1),
            0 if residual is None else residual.stride(1),
            0 if activated is None else activated.stride(1),
            DESCRIBED=launch.described,
            TAPS=taps,
            DOUBLES=doubles,
            **launch.options,
            **early_launch(x),
        )
    return Activated(y, activated)


def sequence_windows(x: Tensor, taps: int, out: Tensor) -> None:
    """Write the window of channels around every position of sequences.

    A convolution with few channels is the product of the windows and a weight [N, T C].

    Parameters
    ----------
    x : [B, S, C]
        Sequences, contiguous, of any floating-point dtype; C is a power of two.
    taps : int
        Number of positions T of a window, with (T - 1) // 2 of them before its center. Zeros beyond
        the ends of a sequence.
    out : [B, S, D]
        Memory for the windows, position by position, followed by D - T C zeros; the rows of all
        sequences have the same distance.
    """
    n_sequences, length, channels = x.shape
    n_rows, rows = n_sequences * length, 32
    with torch.cuda.device_of(x):
        _sequence_windows_kernel[(triton.cdiv(n_rows, rows),)](
            x,
            out,
            n_rows,
            length,
            out.stride(1),
            out.shape[2],
            TAPS=taps,
            CHANNELS=channels,
            M=rows,
            N=triton.next_power_of_2(out.shape[2]),
            **early_launch(x),
        )
