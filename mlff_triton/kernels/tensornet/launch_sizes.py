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

FEW, MANY = 320, 2048  # atoms up to which, and beyond which, other programs are faster


class MessageBlocks(NamedTuple):
    """Atoms a program, lanes that share an atom's neighbors, channels, unrolled steps, warps."""

    atoms: int
    lanes: int
    channels: int
    unroll: int
    warps: int


class LinearBlocks(NamedTuple):
    """Atoms, output channels and input channels a step of a program; warps, loads in flight."""

    atoms: int
    channels: int
    inner: int
    warps: int
    stages: int


def message_blocks(y: Tensor) -> MessageBlocks:
    """Gather from neighbors, y[9, N, F]."""
    n_atoms, channels = y.shape[1:]
    if n_atoms <= FEW:
        return MessageBlocks(1, 8, min(channels, 32), 1, 2)
    if n_atoms <= MANY:
        return MessageBlocks(1, 4, min(channels, 32), 2, 1)
    return MessageBlocks(8, 1, min(channels, 64), 1, 4)


def message_backward_blocks(y: Tensor) -> MessageBlocks:
    """Gather from neighbors, and sum over all channels for every edge."""
    n_atoms, channels = y.shape[1:]
    if n_atoms <= FEW:
        return MessageBlocks(1, 4, channels, 1, 4)
    return MessageBlocks(1, 1, channels, 4 if n_atoms <= MANY else 2, 1)


def embedding_blocks(x: Tensor) -> MessageBlocks:
    """Sum what the table gives for each neighbor."""
    n_atoms, channels = x.shape[1:]
    if n_atoms <= FEW:
        return MessageBlocks(1, 8, min(channels, 32), 1, 2)
    if n_atoms <= MANY:
        return MessageBlocks(1, 2, min(channels, 64), 1, 1)
    return MessageBlocks(2, 1, min(channels, 128), 1, 2)


def embedding_backward_blocks(x: Tensor) -> MessageBlocks:
    """Sum over all channels for every edge."""
    n_atoms, channels = x.shape[1:]
    if n_atoms <= FEW:
        return MessageBlocks(1, 8, channels, 1, 8)
    if n_atoms <= MANY:
        return MessageBlocks(1, 2, channels, 1, 2)
    return MessageBlocks(1, 1, channels, 1, 1)


def tensor_blocks(x: Tensor) -> LinearBlocks:
    """One pass over nine components: a warp, and two or four numbers a thread."""
    n_atoms, channels = x.shape[1:]
    width = min(channels, 32 if n_atoms <= MANY else 128)
    atoms = 64 // width if n_atoms <= MANY else 128 // width
    return LinearBlocks(atoms, width, width, 1, 1)


def linear_blocks(x: Tensor) -> LinearBlocks:
    """Products of x[9, N, F] alone: large tiles once there are enough of them."""
    n_atoms, channels = x.shape[1:]
    inner = min(128 // x.element_size(), channels)
    if n_atoms <= FEW:
        return LinearBlocks(16, min(32, channels), inner, 4, 3)
    return LinearBlocks(64, min(64, channels), inner, 4, 3)


def row_blocks(rows: Tensor) -> LinearBlocks:
    """Products of rows[N, F] with what comes before and after."""
    n_atoms, channels = rows.shape
    inner = min(256 // rows.element_size(), channels)
    if n_atoms <= FEW:
        return LinearBlocks(16, min(32, channels), inner, 4, 2)
    if n_atoms <= MANY or hardware.shared_memory(rows) < 160 * KIB:
        return LinearBlocks(16, min(64, channels), inner, 4, 2)
    return LinearBlocks(64, min(64, channels), min(32, channels), 4, 2)


def readout_blocks(rows: Tensor) -> LinearBlocks:
    """Products of the norms of whole tensors, which are read again for every block of outputs."""
    channels = rows.shape[1]
    return LinearBlocks(16, min(32, channels), min(512 // rows.element_size(), channels), 4, 1)


def head_blocks(rows: Tensor) -> LinearBlocks:
    """Two products and their adjoints for the same atoms."""
    return LinearBlocks(16, min(256 // rows.element_size(), rows.shape[1]), 0, 4, 1)


def readout_backward_blocks(rows: Tensor) -> LinearBlocks:
    """Rows of all nine components, with a step of the inner channels at a time."""
    n_atoms, channels = rows.shape
    inner = min(128 // rows.element_size(), channels)
    if hardware.shared_memory(rows) < 220 * KIB:
        return LinearBlocks(16, channels, inner, 4, 1)
    return LinearBlocks(16, channels, min(64, channels) if n_atoms <= MANY else inner, 4, 2)
