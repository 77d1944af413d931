"""Block sizes and warps of the kernels of TensorNet2.

Products of many rows, first hidden values and sums of messages have the sizes that were fastest on
an NVIDIA H200 with F = 128 and 4,096 atoms, and products of few rows have some that are faster with
21 atoms. Limits of registers were not measured: they are the lowest that compilers meet without
spills in a loop, so that more programs run at a time. The same holds for the warps of gradients and
Coulomb energies.

As in `mlff_triton.kernels.tensornet.launch_sizes`, the order of a sum depends on channels alone, so
a system has the same bits alone and in a batch.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.tensornet.launch_sizes import LinearBlocks

FEW_ROWS = 1 << 12  # products of which do not fill a GPU with large tiles


class GatherBlocks(NamedTuple):
    """Block sizes of kernels that own an atom, and loop over its edges.

    Attributes
    ----------
    lanes : int
        Edges in an iteration.
    channels : int
        Channels per program.
    warps : int
        Warps per program.
    registers : int
        Most registers of a thread, on NVIDIA GPUs.
    """

    lanes: int
    channels: int
    warps: int
    registers: int = 255


class ProductBlocks(NamedTuple):
    """Block sizes of products of rows of edges.

    Attributes
    ----------
    rows, columns, inner : int
        Rows and columns of the result, and channels in an iteration of the loop.
    warps, stages : int
        Warps per program, and stages of the loop's software pipeline.
    registers : int
        Most registers of a thread, on NVIDIA GPUs.
    """

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int
    registers: int = 255


def gather_blocks(y: Tensor) -> GatherBlocks:
    """Return the sizes for the first hidden values of edges."""
    channels = y.shape[2]
    return GatherBlocks(8, channels, 4)


def sum_blocks(y: Tensor) -> GatherBlocks:
    """Return the sizes for sums of messages over neighbors."""
    return GatherBlocks(2, min(y.shape[2], 32), 1)


def gradient_blocks(y: Tensor) -> GatherBlocks:
    """Return the sizes for gathering and reducing each edge over all channels, in one warp."""
    channels = y.shape[2]
    return GatherBlocks(max(256 // channels, 1), channels, 2, 168 if y.element_size() == 4 else 255)


def term_blocks(y: Tensor) -> GatherBlocks:
    """Return the sizes for the gradients of the first hidden values, on tensor cores."""
    is_small = y.element_size() == 4 and y.shape[2] <= 128
    return GatherBlocks(128 // y.element_size(), y.shape[2], 8, 128 if is_small else 255)


def coulomb_blocks(charges: Tensor) -> GatherBlocks:
    """Return the sizes for Coulomb energies of charges [N, C] along edges."""
    channels = charges.shape[1]
    if charges.element_size() == 8:
        return GatherBlocks(16, channels, 4)
    return GatherBlocks(32, channels, 1, 200)


def product_blocks(x: Tensor, n_in: int, n_out: int) -> ProductBlocks:
    """Return the sizes for products of x[2 or 1, rows, I] with a weight [I, O].

    Channels are three times a power of two at most. Blocks have a size that divides the channels.
    """
    inner, columns = n_in & -n_in, n_out & -n_out
    if x.element_size() == 2 and hardware.has_large_memory(x):
        if x.shape[1] <= FEW_ROWS:
            return ProductBlocks(64, min(32, columns), min(32, inner), 4, 6)
        return ProductBlocks(64, min(128, columns), min(32, inner), 4, 3, 168)  # three at a time
    if x.element_size() == 2:
        return ProductBlocks(64, min(64, columns), min(32, inner), 4, 2)
    return ProductBlocks(64, min(32, columns), min(128 // x.element_size(), inner), 4, 1)


def network_blocks(rows: Tensor) -> LinearBlocks:
    """Return the sizes for two products of rows[N, F] in one kernel."""
    channels = rows.shape[1]
    inner = max(16, min(256 // rows.element_size(), channels, 4096 // channels))
    return LinearBlocks(16, channels, inner, 4, 3 if hardware.has_large_memory(rows) else 1)
