"""Block sizes and warps of the engine's kernels, by number of atoms and channels.

The sizes were measured on an NVIDIA H200 with F = 128. A few atoms cannot fill a GPU, so their work
is spread over many small programs. Many atoms run fastest in large blocks of neighboring atoms,
which share what they gather.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.hardware import KIB

FEW, MANY = 320, 2048  # numbers of atoms at which the fastest block sizes change


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


def message_blocks(y: Tensor) -> MessageBlocks:
    """Return the sizes for gathering y[9, N, F] from neighbors."""
    n_atoms, channels = y.shape[1:]
    if n_atoms <= FEW:
        return MessageBlocks(1, 8, min(channels, 32), 1, 2)
    if n_atoms <= MANY:
        return MessageBlocks(1, 4, min(channels, 32), 2, 1)
    return MessageBlocks(8, 1, min(channels, 64), 1, 4)


def message_backward_blocks(y: Tensor) -> MessageBlocks:
    """Return the sizes for gathering from neighbors and reducing each edge over all channels."""
    n_atoms, channels = y.shape[1:]
    if n_atoms <= FEW:
        return MessageBlocks(1, 4, channels, 1, 4)
    return MessageBlocks(1, 1, channels, 4 if n_atoms <= MANY else 2, 1)


def embedding_blocks(x: Tensor) -> MessageBlocks:
    """Return the sizes for summing interpolated tensors over neighbors."""
    n_atoms, channels = x.shape[1:]
    if n_atoms <= FEW:
        return MessageBlocks(1, 8, min(channels, 32), 1, 2)
    if n_atoms <= MANY:
        return MessageBlocks(1, 2, min(channels, 64), 1, 1)
    return MessageBlocks(2, 1, min(channels, 128), 1, 2)


def embedding_backward_blocks(x: Tensor) -> MessageBlocks:
    """Return the sizes for reducing each edge over all channels."""
    n_atoms, channels = x.shape[1:]
    if n_atoms <= FEW:
        return MessageBlocks(1, 8, channels, 1, 8)
    if n_atoms <= MANY:
        return MessageBlocks(1, 2, channels, 1, 2)
    return MessageBlocks(1, 1, channels, 1, 1)


def tensor_blocks(x: Tensor) -> LinearBlocks:
    """Return the sizes for one pass over x[9, N, F]: one warp, two or four elements per thread."""
    n_atoms, channels = x.shape[1:]
    width = min(channels, 32 if n_atoms <= MANY else 128)
    atoms = 64 // width if n_atoms <= MANY else 128 // width
    return LinearBlocks(atoms, width, width, 1, 1)


def linear_blocks(x: Tensor) -> LinearBlocks:
    """Return the sizes for a product of x[9, N, F]: large tiles once they fill the GPU."""
    n_atoms, channels = x.shape[1:]
    inner = min(128 // x.element_size(), channels)
    if n_atoms <= FEW:
        return LinearBlocks(16, min(32, channels), inner, 4, 3)
    return LinearBlocks(64, min(64, channels), inner, 4, 3)


def row_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for a product of rows[N, F] fused with its prologue and epilogue."""
    n_atoms, channels = rows.shape
    inner = min(256 // rows.element_size(), channels)
    if n_atoms <= FEW:
        return LinearBlocks(16, min(32, channels), inner, 4, 2)
    if n_atoms <= MANY or hardware.shared_memory(rows) < 160 * KIB:
        return LinearBlocks(16, min(64, channels), inner, 4, 2)
    return LinearBlocks(64, min(64, channels), min(32, channels), 4, 2)


def readout_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for a product of norms, which each block of outputs computes again."""
    channels = rows.shape[1]
    return LinearBlocks(16, min(32, channels), min(512 // rows.element_size(), channels), 4, 1)


def head_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for two products and their adjoints in one kernel."""
    return LinearBlocks(16, min(256 // rows.element_size(), rows.shape[1]), 0, 4, 1)


def readout_backward_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for the adjoint of the readout, whose programs own all channels."""
    n_atoms, channels = rows.shape
    inner = min(128 // rows.element_size(), channels)
    if hardware.shared_memory(rows) < 220 * KIB:
        return LinearBlocks(16, channels, inner, 4, 1)
    return LinearBlocks(16, channels, min(64, channels) if n_atoms <= MANY else inner, 4, 2)
