"""Times of several methods that alternate, so that other work on the machine slows all of them.

A round gives each method one turn, in the order of the round before reversed. Ratios are those of
turns of the same round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ROUNDS = (3, 101)  # fewest and most

Turn = Callable[[], float]
"""Do something a few times, and return the mean time in ms."""
Key = tuple[str, int]
"""Name of a method, and its number of threads."""


@dataclass(frozen=True)
class Contest:
    """Times of a contest.

    Attributes
    ----------
    ms : dict
        Time of each method in each round, float64 [rounds] in ms.
    failures : dict
        Errors of methods that did not finish, which have no times.
    """

    ms: dict[Key, NDArray[np.float64]]
    failures: dict[Key, Exception] = field(default_factory=dict)

    def ratio(self, key: Key, base: Key) -> float | None:
        """Return the median ratio of times of the same round; None without the base."""
        if base not in self.ms:
            return None
        return float(np.median(self.ms[key] / self.ms[base]))


def hold(turns: Mapping[Key, Turn], seconds: float, rounds: tuple[int, int] = ROUNDS) -> Contest:
    """Let methods take turns for about a number of seconds each.

    Parameters
    ----------
    turns : mapping
        The methods.
    seconds : float
        Approximate time for each method.
    rounds : (int, int)
        Smallest and largest number of rounds.
    """
    times: dict[Key, list[float]] = {key: [] for key in turns}
    failures: dict[Key, Exception] = {}
    order = list(turns)
    fewest, most = rounds
    end = time.perf_counter() + seconds * len(turns)
    for done in range(most):
        if done >= fewest and time.perf_counter() > end:
            break
        for key in order:
            try:
                times[key].append(turns[key]())
            except Exception as problem:  # noqa: BLE001, PERF203 - others go on
                failures[key] = problem
        order = [key for key in reversed(order) if key not in failures]
    return Contest({key: np.array(times[key]) for key in turns if key not in failures}, failures)
