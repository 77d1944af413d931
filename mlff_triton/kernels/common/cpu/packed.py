"""Parameters in the layouts that loops read, packed once and kept as long as the parameters."""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.common.cpu.arrays import Array, OfTensors
from mlff_triton.kernels.common.cpu.vectors import lanes_of


def _pack_table(table: Tensor) -> Array:
    lanes = len(lanes_of(table.shape[3], table.element_size()))
    blocks = table.unflatten(3, (-1, lanes))
    packed: Array = blocks.permute(3, 0, 2, 1, 4).contiguous().numpy()
    return packed


def _transpose(weight: Tensor) -> Array:
    transposed: Array = weight.reshape(-1, *weight.shape[-2:]).mT.contiguous().numpy()
    return transposed


def _version(parameter: Tensor) -> int:
    """Return a number that changes with the values of a parameter."""
    return 0 if parameter.is_inference() else parameter._version


packed_table = OfTensors(_pack_table, _version)
"""Function that packs a radial table [K + 1, 3, 3, F] by vectors: [blocks, K + 1, 3, 3, lanes].

The block of a table that one vector needs fits into the cache of a core. Its indices are the knot,
the part, and value, slope or secant.
"""

transposed_weight = OfTensors(_transpose, _version)
"""Function that returns weights [parts, out, in] or [out, in] as [parts, in, out], contiguous."""
