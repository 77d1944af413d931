"""Number of replicas that fit the memory of a GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from mlff_triton.errors import DeviceMemoryError


def explain_shortage(
    attempt: Callable[[int], object], n_systems: int, reason: str
) -> DeviceMemoryError:
    """Return an error that says how many replicas fit the memory, or a reason if not even one does.

    Parameters are those of `count_fitting`.
    """
    count = count_fitting(attempt, n_systems)
    count -= count // 10  # because neighbor lists may grow
    if count == 0:
        return DeviceMemoryError(reason)
    return DeviceMemoryError(
        f"{n_systems} replicas need more memory than the GPU has free: {count} would fit, so run "
        f"at most {count} at a time"
    )


def count_fitting(attempt: Callable[[int], object], too_many: int) -> int:
    """Return how many replicas can be simulated together, by bisection.

    Parameters
    ----------
    attempt : callable
        Allocates the memory that a number of replicas need, and raises a `DeviceMemoryError` if
        there is too little.
    too_many : int
        A number of replicas for which it raises.

    Returns
    -------
    int
        The largest number for which it does not raise; 0 if there is none.
    """
    fitting = 0
    while too_many - fitting > 1:
        count = (fitting + too_many) // 2
        if _fits(attempt, count):
            fitting = count
        else:
            too_many = count
    return fitting


def _fits(attempt: Callable[[int], object], count: int) -> bool:
    """Return True if an attempt succeeds, and free what it has taken."""
    try:
        attempt(count)
    except DeviceMemoryError:
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()  # does nothing if PyTorch has not used a GPU
    return True
