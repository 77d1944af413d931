"""Values that are computed once for the same tensors, without keeping these alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from torch import Tensor

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Value computed from tensors, which is forgotten when one of them is deleted.

    It is computed again after changes of the tensors in place. Tensors made in inference mode do
    not count their changes, so that these go unnoticed. Copies remember nothing.
    """

    def __init__(self) -> None:
        self._tensors: list[weakref.ref[Tensor]] = []
        self._versions: list[int] = []
        self._value: Value | None = None

    def get(self, tensors: Sequence[Tensor]) -> Value | None:
        """Return the value for these tensors, or None if it is not known."""
        if self._value is None or len(tensors) != len(self._tensors):
            return None
        are_same = all(known() is given for known, given in zip(self._tensors, tensors))  # noqa: B905 - checked above
        return self._value if are_same and self._versions == _versions(tensors) else None

    def set(self, tensors: Sequence[Tensor], value: Value) -> None:
        """Remember the value for these tensors alone."""
        forget = partial(_forget, weakref.ref(self))
        self._tensors = [weakref.ref(tensor, forget) for tensor in tensors]
        self._versions, self._value = _versions(tensors), value

    def forget(self) -> None:
        """Forget the value."""
        self._tensors, self._versions, self._value = [], [], None

    def __reduce__(self) -> tuple[type[Remembered[Value]], tuple[()]]:
        return Remembered, ()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested mappings and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _forget(remembered: weakref.ref[Remembered[Value]], _: object) -> None:
    found = remembered()
    if found is not None:
        found.forget()
