"""A sequence of loops and of PyTorch's operators, recorded once and repeated from then on.

A step on few atoms takes longer in Python than in its loops. As a CUDA graph does on a GPU, a
recording calls the same loops on the same memory again, without the functions that chose them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Result = TypeVar("Result")

ALLOCATIONS = ("empty", "new_empty")
"""Beginnings of the names of operators that compute nothing."""


class Recording(TorchDispatchMode):
    """Recording of the calls in this thread, as a context.

    Attributes
    ----------
    calls : list of callable
        Each repeats a loop or an operator with the same arguments, and writes its results to the
        same memory.
    is_complete : bool
        False if an operator has returned anything but a tensor, on which Python may have acted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []
        self.is_complete = True
        self._is_inside = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: PyTorch would import its compiler to exclude this, which takes a second."""
        return False

    @contextmanager
    def made(self) -> Iterator[None]:
        """Record what is called."""
        before = _current.set(self)
        try:
            with self:
                yield
        finally:
            _current.reset(before)

    def perform(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """Call a function, and record it as one call, whatever it calls itself."""
        self.calls.append(partial(function, *arguments))
        before, self._is_inside = _current.set(None), True
        try:
            function(*arguments)
        finally:
            _current.reset(before)
            self._is_inside = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call an operator of PyTorch, and record it."""
        given = kwargs or {}
        found = func(*args, **given)
        name = func.overloadpacket.__name__
        if self._is_inside or _is_view(func) or name.startswith(ALLOCATIONS):
            return found
        if func._schema.is_mutable:
            self.calls.append(partial(func, *args, **given))
        elif isinstance(found, Tensor):
            self.calls.append(partial(_compute_again, found, func, args, given))
        else:
            self.is_complete = False
        return found


def _is_view(func: Any) -> bool:
    """Return True if the result of an operator shares the memory of an argument."""
    shared = (argument.alias_info for argument in func._schema.arguments)
    return any(alias is not None and not alias.is_write for alias in shared)


def _compute_again(found: Tensor, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Compute the result of an operator in place."""
    found.copy_(func(*args, **kwargs))


_current: ContextVar[Recording | None] = ContextVar("recording", default=None)


def perform(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function that returns nothing, which is repeated with any recording."""
    recording = _current.get()
    if recording is None:
        function(*arguments)
    else:
        recording.perform(function, arguments)


class Repeated(Generic[Result]):
    """Results of a function of the same memory, recorded when they are computed a second time.

    So nothing is kept for memory that is used only once. Only the contents of this memory may
    change.
    """

    def __init__(self) -> None:
        self._memory: tuple[object, ...] = ()
        self._recorded: tuple[Recording, Result] | None = None

    def compute(self, function: Callable[[], Result], *memory: object) -> Result:
        """Compute a result, whose tensors the next call may overwrite.

        Parameters
        ----------
        function : callable
            Computes the result only by `perform` and operators of PyTorch. Neither its operators
            nor the sizes of tensors depend on the contents of the memory.
        *memory : object
            Tensors, tuples of them and numbers that the function depends on.
        """
        is_known = len(memory) == len(self._memory) and all(map(operator.is_, memory, self._memory))
        if not is_known:
            self._memory, self._recorded = memory, None
            return function()
        if self._recorded is None:
            recording = Recording()
            with recording.made():
                result = function()
            if recording.is_complete:
                self._recorded = recording, result
            return result
        recording, result = self._recorded
        for call in recording.calls:
            call()
        return result
