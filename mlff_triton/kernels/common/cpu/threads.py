"""Threads that share the work of a step, each with products of one thread.

The libraries that PyTorch takes products from divide them among threads by themselves. They sum in
another order then, where matrices have few rows, so bits would depend on the number of threads.
Their threads also keep the processor busy for a while after each product, so that others wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch


class _Number(threading.local):
    """Number of threads that the caller of a step wants, while PyTorch itself takes one."""

    value: int | None = None


_wanted = _Number()
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def n_threads() -> int:
    """Return the number of threads to use: that of PyTorch, outside `own_threads`."""
    return _wanted.value or torch.get_num_threads()


@contextmanager
def own_threads() -> Iterator[None]:
    """Let PyTorch use one thread in each of ours, and give it back its number at the end.

    Entering it takes less than a microsecond.
    """
    if _wanted.value is not None:
        yield
        return
    _wanted.value = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_wanted.value)
        _wanted.value = None


def in_parallel(function: Callable[..., None], pieces: Sequence[tuple[Any, ...]]) -> None:
    """Call a function with the arguments of each piece, in this thread and others.

    Each thread takes the next piece when it has finished one. Pieces must not depend on the number
    of threads, and write to separate memory.
    """
    count, rest = min(n_threads(), len(pieces)), iter(pieces)

    def work() -> None:
        for piece in rest:
            function(*piece)

    with own_threads():
        others = [_pool(count - 1).submit(work) for _ in range(count - 1)]
        try:
            work()
        finally:
            for other in others:
                other.result()


def _pool(count: int) -> ThreadPoolExecutor:
    """Return threads of this process; those of a parent do not survive a fork."""
    key = os.getpid(), count
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(count, "mlff_triton", torch.set_num_threads, (1,))
    return _pools[key]
