"""Keys of kernels in Triton's cache, the same in all processes."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from triton.runtime import jit

CALLABLE = getattr(jit, "JITCallable", jit.JITFunction)  # the former from Triton 3.5


def settle_key(function: Any) -> None:
    """Make Triton compute the key of a function after the keys of all functions that it calls.

    Triton's key contains only the constants of callees whose keys are already known. So it would
    depend on the earlier launches of a process, and other processes would not find the kernel.

    Parameters
    ----------
    function : triton.runtime.jit.JITFunction
        A kernel.
    """
    if function.hash is None:
        for callee in _callees(function):
            if callee is not function:
                settle_key(callee)
        function.cache_key  # noqa: B018 - a property that remembers its value


def _callees(function: Any) -> Iterator[Any]:
    """Yield the functions for GPUs that a function names, by itself or in a module."""
    names = function.fn.__code__.co_names
    for name in names:
        value = function.__globals__.get(name)
        values = [value]
        if isinstance(value, ModuleType):
            values = [vars(value).get(attribute) for attribute in names]
        yield from (value for value in values if isinstance(value, CALLABLE))
