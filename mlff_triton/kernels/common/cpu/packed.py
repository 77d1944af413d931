"""Parameters in the layouts that loops read, packed once and kept as long as the parameters."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from mlff_triton.kernels.common.cpu.compilation import Array
from mlff_triton.kernels.common.cpu.vectors import lanes_of

_packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def packed_table(table: Tensor) -> Array:
    """Pack a radial table [K + 1, 3, 3, F] by vectors of channels: [blocks, K + 1, 3, 3, lanes].

    The block of a table that one vector needs fits into the cache of a core. Its indices are the
    knot, the part, and value, slope or secant.
    """

    def pack() -> Tensor:
        lanes = len(lanes_of(table.shape[3], table.element_size()))
        blocks: Tensor = table.unflatten(3, (-1, lanes))
        return blocks.permute(3, 0, 2, 1, 4).contiguous()

    return _remember(table, pack)


def transposed_weight(weight: Tensor) -> Array:
    """Return weights [parts, out, in] or [out, in] as [parts, in, out], contiguous."""

    def transpose() -> Tensor:
        transposed: Tensor = weight.reshape(-1, *weight.shape[-2:]).mT.contiguous()
        return transposed

    return _remember(weight, transpose)


def _remember(parameter: Tensor, pack: Callable[[], Tensor]) -> Array:
    """Return what was packed of a parameter, again if that has changed since."""
    version = 0 if parameter.is_inference() else parameter._version
    found: tuple[int, Array] | None = _packed.get(parameter)
    if found is None or found[0] != version:
        _packed[parameter] = found = version, pack().numpy()
    return found[1]
