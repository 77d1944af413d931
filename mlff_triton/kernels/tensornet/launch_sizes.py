"""Block sizes and warps of the engine's kernels, by number of channels and atoms.

The sizes were measured on an NVIDIA H200 with F = 64 (liquid water) and F = 128. A few atoms cannot
fill a GPU, so their work is spread over more programs.

The number of atoms never changes the order of a sum. So a system has the same bits alone and in a
batch. The order follows from the lanes of sums over neighbors, the rows per warp of sums over
channels, and the blocks of inner channels of matrix products. These depend only on the number of
channels. Compilers also choose which products and sums they fuse, so other sizes differ only where
tests find the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.hardware import KIB

FEW, MANY = 320, 2048  # numbers of atoms at which the fastest block sizes change
FULL = 1 << 17  # elements of a tensor [N, F] that fill a GPU with large tiles


class MessageBlocks(NamedTuple):
    """Block sizes of kernels that sum over neighbors.

    Attributes
    ----------
    atoms, channels : int
        Atoms and channels per program.
    lanes : int
        Lanes that share the neighbors of an atom.
    unroll : int
        Neighbors per lane in each iteration of the loop.
    warps : int
        Warps per program.
    """

    atoms: int
    lanes: int
    channels: int
    unroll: int
    warps: int


class LinearBlocks(NamedTuple):
    """Block sizes of kernels that multiply by weights, or work on all components of a tensor.

    Attributes
    ----------
    atoms, channels : int
        Atoms and output channels per program.
    inner : int
        Input channels per iteration of the loop.
    warps, stages : int
        Warps per program, and stages of its software pipeline.
    """

    atoms: int
    channels: int
    inner: int
    warps: int
    stages: int


def other_rows(n_rows: int, n_atoms: int) -> int | None:
    """Return the number of rows of an argument if it differs from that of all others, or None.

    Kernels that are given None compile as if this case did not exist.
    """
    return None if n_rows == n_atoms else n_rows


def message_blocks(y: Tensor) -> MessageBlocks:
    """Return the sizes for gathering y[9, N, F] from neighbors."""
    n_atoms, channels = y.shape[1:]
    return MessageBlocks(1, 2, min(channels, 32), 4 if n_atoms <= MANY else 2, 1)


def message_backward_blocks(y: Tensor) -> MessageBlocks:
    """Return the sizes for gathering and reducing each edge over all channels, in one warp."""
    channels = y.shape[2]
    return MessageBlocks(1, max(128 // channels, 1), channels, 1, max(channels // 128, 1))


def embedding_blocks(x: Tensor) -> MessageBlocks:
    """Return the sizes for summing interpolated tensors over neighbors."""
    return MessageBlocks(1, 2, min(x.shape[2], 32), 1, 1)


def embedding_backward_blocks(x: Tensor) -> MessageBlocks:
    """Return the sizes for reducing each edge over all channels: 128 elements per warp."""
    n_atoms, channels = x.shape[1:]
    warps = 4 if n_atoms <= FEW else 2
    return MessageBlocks(1, max(warps * 128 // channels, 1), channels, 1, warps)


def tensor_blocks(x: Tensor) -> LinearBlocks:
    """Return the sizes for one pass over x[9, N, F]: an element per thread."""
    channels = min(x.shape[2], 64)
    return LinearBlocks(1, channels, channels, 2, 1)


def linear_blocks(x: Tensor) -> LinearBlocks:
    """Return the sizes for a product of x[9, N, F]: large tiles once they fill the GPU."""
    n_atoms, channels = x.shape[1:]
    inner = min(128 // x.element_size(), channels)
    atoms, width = 16 if n_atoms <= FEW else 64, 32 if n_atoms * channels < FULL else 64
    return LinearBlocks(atoms, min(width, channels), inner, 4, 3)


def row_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for a product of rows[N, F] fused with its prologue and epilogue."""
    n_atoms, channels = rows.shape
    inner = min(256 // rows.element_size(), channels)
    is_large = channels >= 64 and hardware.shared_memory(rows) >= 160 * KIB
    atoms = 32 if n_atoms > MANY and is_large else 16
    return LinearBlocks(atoms, min(32 if n_atoms <= FEW else 64, channels), inner, 4, 2)


def invariant_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for products of rows with 3 F inputs or outputs: deep tiles for few rows."""
    blocks = row_blocks(rows)
    is_deep = len(rows) <= FEW and hardware.has_large_memory(rows)
    return blocks._replace(stages=4) if is_deep else blocks


def head_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for two products and their adjoints in one kernel."""
    return LinearBlocks(16, min(256 // rows.element_size(), rows.shape[1]), 0, 4, 1)
