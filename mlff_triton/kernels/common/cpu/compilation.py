"""Loops over atoms: compiled by Numba, cached on disk, and divided among threads.

A loop takes arrays and a range of atoms, and writes only what belongs to the atoms of its range. So
threads need no locks, and results do not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from numba import njit
from torch import Tensor

from mlff_triton.kernels.common.cpu.threads import in_parallel, n_threads

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Liberties of the compiler: to vectorize sums over channels, but not to ignore NaN."""
FEWEST = 64
"""Atoms of a range; fewer take less time than to wake a thread."""

Loop = Callable[..., None]

inlined = njit(fastmath=FAST, error_model="numpy", nogil=True)
"""Decorator of functions that loops call."""
loop = njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
"""Decorator of functions ``f(*arrays, first, last)``, see `run`."""
exact_inlined = njit(error_model="numpy", nogil=True)
"""Decorator as `inlined`, for `exact_loop`."""
exact_loop = njit(error_model="numpy", nogil=True, cache=True)
"""Decorator as `loop`, of arithmetic that is done as it is written.

So the vectors of opposite edges are opposite to the bit, and results are the same on all CPUs.
"""


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
    count = max(1, min(n_threads(), n_atoms // FEWEST))
    bounds = [n_atoms * k // count for k in range(count + 1)]
    in_parallel(function, [(*arrays, *bound) for bound in pairwise(bounds)])
