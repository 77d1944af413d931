"""A check that interpreted kernels stay within the memory of their arguments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch


class Bounds:
    """Memory of the tensors that the kernel in progress was given: sorted addresses."""

    def __init__(self) -> None:
        self.kernel = ""
        self.first: list[int] = []
        self.last: list[int] = []

    def set(self, kernel: str, arguments: object) -> None:
        """Take the tensors among the arguments of a kernel, also in containers of them."""
        self.kernel = kernel
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors(arguments)}
        self.first = sorted(storages)
        self.last = [address + storages[address].nbytes() for address in self.first]

    def check(self, addresses: np.ndarray, mask: np.ndarray, size: int) -> None:
        """Raise `IndexError` unless values of some bytes lie within a tensor each."""
        live = np.asarray(addresses)[np.asarray(mask, bool)]
        if not live.size:
            return
        lowest, highest = int(live.min()), int(live.max())
        if not (self._holds(lowest, highest + size) or all(map(self._value(size), live.tolist()))):
            raise IndexError(f"{self.kernel} reads or writes beyond its tensors")

    def _holds(self, first: int, last: int) -> bool:
        k = bisect_right(self.first, first) - 1
        return k >= 0 and last <= self.last[k]

    def _value(self, size: int) -> Callable[[int], bool]:
        return lambda address: self._holds(address, address + size)


def tensors(arguments: object) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, also those in containers and descriptors."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    if isinstance(arguments, torch.Tensor):
        yield arguments
    elif isinstance(arguments, TensorDescriptor):
        yield arguments.base
    elif isinstance(arguments, dict):
        yield from tensors(tuple(arguments.values()))
    elif isinstance(arguments, tuple | list):
        for each in arguments:
            yield from tensors(each)


class CheckedMemory:
    """The interpreter's functions for memory, which check addresses first."""

    def __init__(self, functions: Any, bounds: Bounds) -> None:
        self._functions, self._bounds = functions, bounds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._bounds.check(addresses, mask, np.dtype(dtype).itemsize)
        return self._functions.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        self._bounds.check(addresses, mask, values.dtype.itemsize)
        return self._functions.store(addresses, values, mask)

    def atomic_rmw(self, kind: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        self._bounds.check(addresses, mask, values.dtype.itemsize)
        return self._functions.atomic_rmw(kind, addresses, values, mask, order)

    def atomic_cas(self, addresses: Any, expected: Any, values: Any, order: Any) -> Any:
        self._bounds.check(addresses, np.ones_like(addresses, bool), values.dtype.itemsize)
        return self._functions.atomic_cas(addresses, expected, values, order)


def check_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter raise where a kernel reads or writes beyond its tensors."""
    from triton.runtime import interpreter

    bounds = Bounds()
    copy_arguments = interpreter.GridExecutor._init_args_hst

    def note_arguments(self: Any, *arguments: Any) -> Any:
        copied = copy_arguments(self, *arguments)
        bounds.set(self.fn.__name__, copied)
        return copied

    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", note_arguments)
    monkeypatch.setattr(
        interpreter, "_interpreter", CheckedMemory(interpreter._interpreter, bounds)
    )
