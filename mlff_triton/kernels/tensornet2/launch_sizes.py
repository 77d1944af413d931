"""Block sizes and warps of the kernels of TensorNet2.

As in `mlff_triton.kernels.tensornet.launch_sizes`, the order of a sum depends on channels alone, so
a system has the same bits alone and in a batch.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.tensornet.launch_sizes import LinearBlocks


class EdgeBlocks(NamedTuple):
    """Block sizes of kernels that evaluate a network for each edge.

    Attributes
    ----------
    atoms : int
        Atoms per program.
    lanes : int
        Edges of each atom in an iteration of the loop.
    inner : int
        Hidden channels in an iteration of the inner loop.
    warps, stages : int
        Warps per program, and stages of its software pipeline.
    """

    atoms: int
    lanes: int
    inner: int
    warps: int
    stages: int


def edge_blocks(y: Tensor) -> EdgeBlocks:
    """Return the sizes for the messages of y[9, N, F] and their adjoint.

    Three hidden values per channel and edge, for at most 4096 of them, fill the registers of four
    warps. Several programs per multiprocessor hide each other's latencies.
    """
    channels, size = y.shape[2], y.element_size()
    lanes = 128 // size
    rows = max(lanes, min(128, 4096 * 4 // (channels * size)))
    inner = 64 if hardware.has_large_memory(y) and size == 4 else 16
    return EdgeBlocks(rows // lanes, lanes, inner, 8 if channels > 128 else 4, 1)


def network_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for two products of rows[N, F] in one kernel."""
    channels = rows.shape[1]
    inner = max(16, min(256 // rows.element_size(), channels, 4096 // channels))
    return LinearBlocks(16, channels, inner, 4, 1)
