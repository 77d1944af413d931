"""The number of threads of PyTorch on a CPU; the last bits of forces may depend on it."""

from __future__ import annotations

import logging
import os
from functools import cache

import torch

ATOMS_PER_THREAD = 128

_LOG = logging.getLogger("mlff_triton")


def choose_threads(n_atoms: int) -> int:
    """Return the number of threads for a number of atoms: one per 128, within PyTorch's own number.

    Threads wait for one another hundreds of times per step. Little work per thread does not pay,
    least of all if another process keeps a core busy.

    Parameters
    ----------
    n_atoms : int
        Number of atoms of all systems.
    """
    return max(1, min(torch.get_num_threads(), n_atoms // ATOMS_PER_THREAD))


@cache
def warn_if_busy(threads: int) -> None:
    """Log advice once per process if other programs use the cores that threads would need.

    The number of threads is not reduced for these programs, because the last bits of results depend
    on it.
    """
    if threads == 1 or not hasattr(os, "getloadavg"):  # as on Windows
        return
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load + threads > cores + 1:
        _LOG.warning(
            f"other programs keep {load:.1f} of {cores} cores busy, and {threads} threads wait for "
            "one another in each step: one thread (--threads 1) may be faster"
        )
