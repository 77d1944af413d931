"""The number of threads of PyTorch on a CPU, on which the last bits of forces may depend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

ATOMS_PER_THREAD = 64


def choose_threads(n_atoms: int) -> int:
    """Return the number of threads for a number of atoms: one per 64, within PyTorch's own number.

    Threads wait for one another hundreds of times per step. Little work per thread does not pay,
    least of all where another process keeps a core busy.

    Parameters
    ----------
    n_atoms : int
        Number of atoms of all systems.
    """
    return max(1, min(torch.get_num_threads(), n_atoms // ATOMS_PER_THREAD))


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Have PyTorch use a number of threads in this context; None leaves it as it is."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
