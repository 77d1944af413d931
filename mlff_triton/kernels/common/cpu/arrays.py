"""Arrays that share the memory of tensors, and arrays that are computed from tensors once.

PyTorch takes a microsecond to convert a tensor to an array. Loops over few atoms take ten
microseconds, and have ten arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class OfTensors:
    """Function of tensors that keeps its results until the tensors are deleted.

    Parameters
    ----------
    compute : callable
        Return the array of a tensor.
    state : callable
        Return a number that changes whenever the array has to be computed again.
    """

    def __init__(self, compute: Callable[[Tensor], Array], state: Callable[[Tensor], int]) -> None:
        self._compute, self._state = compute, state
        self._kept: dict[int, _Kept] = {}

    def __call__(self, x: Tensor) -> Array:
        """Return the array of a tensor."""
        kept, state = self._kept.get(id(x)), self._state(x)
        if kept is None or kept.state != state or kept() is not x:
            kept = _Kept(x, self._forget)
            kept.key, kept.state, kept.array = id(x), state, self._compute(x)
            self._kept[kept.key] = kept
        return kept.array

    def _forget(self, kept: _Kept) -> None:
        """Drop the array of a tensor, before another tensor can have its identity."""
        self._kept.pop(kept.key, None)


class _Kept(ref[Tensor]):
    """Weak reference to a tensor, with its identity, its state and its array."""

    __slots__ = ("array", "key", "state")

    key: int
    state: int
    array: Array


as_array = OfTensors(Tensor.numpy, Tensor.data_ptr)
"""Function that returns the memory of a tensor on the CPU as an array.

Tensors may be given other memory, but must not change their shape in place.
"""
