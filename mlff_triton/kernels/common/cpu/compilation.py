"""Loops over atoms: compiled by Numba, cached on disk, and divided among threads.

A loop takes arrays and a range of atoms, and writes only what belongs to the atoms of its range. So
threads need no locks, and results do not depend on their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from numba import njit
from torch import Tensor

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Liberties of the compiler: to vectorize sums over channels, but not to ignore NaN."""
FEWEST = 64
"""Atoms of a range; fewer take less time than to wake a thread."""

Loop = Callable[..., None]

inlined = njit(fastmath=FAST, error_model="numpy", nogil=True)
"""Decorator of functions that loops call."""
loop = njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
"""Decorator of functions ``f(*arrays, first, last)``, see `run`."""

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run(function: Loop, n_atoms: int, *arguments: Any) -> None:
    """Run a loop over a number of atoms, with as many threads as PyTorch uses.

    Parameters
    ----------
    function : callable
        The loop.
    n_atoms : int
        Number of atoms, N.
    *arguments
        Arguments of the loop before its range. Tensors on the CPU are passed as arrays.
    """
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in arguments]
    n_threads = min(torch.get_num_threads(), n_atoms // FEWEST)
    if n_threads <= 1:
        function(*arrays, 0, n_atoms)
        return
    bounds = [n_atoms * k // n_threads for k in range(n_threads + 1)]
    pool = _pool(n_threads - 1)
    others: list[Future[None]] = [
        pool.submit(function, *arrays, first, last) for first, last in pairwise(bounds[1:])
    ]
    function(*arrays, 0, bounds[1])
    for other in others:
        other.result()


def _pool(n_threads: int) -> ThreadPoolExecutor:
    """Return threads of this process; those of a parent do not survive a fork."""
    key = os.getpid(), n_threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(n_threads, "mlff_triton")
    return _pools[key]
