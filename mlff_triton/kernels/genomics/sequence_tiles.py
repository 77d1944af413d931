"""Tiles of rows of sequences: their order, and the loads and stores of their blocks.

Tensor descriptors copy blocks on Hopper and later, and read zeros beyond the ends of a sequence. On
other GPUs, kernels make the descriptors themselves, and Triton turns them into pointers and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mlff_triton.kernels.common import descriptors, hardware
from mlff_triton.kernels.common.activations import gelu_sigmoid
from mlff_triton.kernels.common.descriptors import has_descriptors
from mlff_triton.kernels.common.tiles import tile_in_group


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

    If DESCRIBED, ``x`` already is a descriptor; otherwise, it is a pointer to rows with a stride.
    Known strides allow GPUs without descriptors to load several elements at a time.
    """
    strides = tl.cast(stride, tl.int64) * length, stride
    return descriptors.describe(x, (n_sequences, length, columns), strides, (1, M, N), DESCRIBED)


@triton.jit
def describe_weight(weight, n_out, n_in, DESCRIBED: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Return a descriptor of a weight [n_out, n_in], like `describe`."""
    return descriptors.describe(weight, (n_out, n_in), (n_in,), (N, K), DESCRIBED)


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
    """Store a block [M, N] of rows, unchanged and activated; skip descriptors that are None."""
    if y is not None:
        store_block(y, batch, row, column, rows)
    if activated is not None:
        columns = column + tl.arange(0, rows.shape[1])
        scale = tl.load(scale_ptr + columns, columns < n_out, other=0.0)
        shift = tl.load(shift_ptr + columns, columns < n_out, other=0.0)
        u = gelu_sigmoid(rows * scale[None, :] + shift[None, :])
        store_block(activated, batch, row, column, u)


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    rows: int
    columns: int
    inner: int
    parts: int
    warps: int
    stages: int
    programs: int  # per multiprocessor


SMALL = Tile(128, 128, 32, 2, 8, 3, 1)  # for any GPU
HALF = Tile(128, 128, 64, 4, 4, 3, 2)  # two per multiprocessor: one computes while the other stores


def count_of(tile: Tile, shape: Sequence[int], n_out: int) -> int:
    """Count the tiles of a result [B, S, n_out], for a shape [B, S, .]."""
    tiles = shape[0] * triton.cdiv(shape[1], tile.rows) * triton.cdiv(n_out, tile.columns)
    return int(tiles)


class Launch(NamedTuple):
    """Descriptors, options and number of programs of a launch over rows."""

    tile: Tile
    programs: int
    described: bool

    @classmethod
    def of(cls, tile: Tile, rows: Tensor, n_out: int, splits: int = 1) -> Launch:
        """Return the launch for rows [B, S, .]; ``splits`` programs share a tile."""
        programs = hardware.multiprocessors(rows.device) * tile.programs
        sums = splits * count_of(tile, rows.shape, n_out)
        return cls(tile, min(programs, sums), has_descriptors(rows))

    def given(self, x: Tensor | None, describe: Callable[..., Any], *sizes: int) -> Any:
        """Return the kernel's argument for ``x``: a descriptor, or ``x`` without descriptors."""
        return describe(x, *sizes) if self.described else x

    def operand(self, x: Tensor) -> TensorDescriptor:
        """Describe rows that are operands of products."""
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
