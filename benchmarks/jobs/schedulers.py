"""Trial of Dask or Ray with two workers: start, cost of tasks, a worker that dies.

Usage: ``python -m benchmarks.jobs.schedulers dask`` or ``ray``, where that package is installed.
Results of both are in ``schedulers.csv``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

TASKS, LARGE_TASKS, WINDOW = 1000, 200, 4


def work(number: int, payload: bytes = b"", mark: str = "") -> int:
    """Return the number; the first time, the process dies if there is a path of a mark."""
    del payload
    if mark and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), 9)
    return number


def start_dask() -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """Start two workers; return functions that submit a task and that wait for its result."""
    from distributed import Client, LocalCluster

    client = Client(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0"))
    return (lambda *a: client.submit(work, *a, pure=False)), lambda future: future.result()


def start_ray() -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """Start two workers; return functions that submit a task and that wait for its result."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    return ray.remote(max_retries=3)(work).remote, ray.get


def main() -> None:
    """Run the trial of one scheduler, and print its times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scheduler", choices=("dask", "ray"))
    options = parser.parse_args()
    clock = Clock()
    submit, wait = start_dask() if options.scheduler == "dask" else start_ray()
    check([wait(submit(0))], 1)
    clock.show("import and start", 1, "s")
    found = [wait(result) for result in [submit(k) for k in range(TASKS)]]
    clock.show("empty task", 1e3 / TASKS, "ms")
    check(found, TASKS)
    payload, begun = os.urandom(1 << 20), deque[Any]()
    for k in range(LARGE_TASKS):
        begun.append(submit(k, payload))
        if len(begun) == WINDOW:
            wait(begun.popleft())
    while begun:
        wait(begun.popleft())
    clock.show("task of 1 MB", 1e3 / LARGE_TASKS, "ms")
    with tempfile.TemporaryDirectory() as folder:
        marks = ["" if k != 5 else f"{folder}/died" for k in range(10)]
        results = [submit(k, b"", mark) for k, mark in enumerate(marks)]
        check([wait(result) for result in results], 10)
    clock.show("ten tasks and a killed worker", 1, "s")


def check(found: list[int], count: int) -> None:
    """Raise unless results have the order of their tasks."""
    if found != list(range(count)):
        raise ValueError("results are wrong or in another order")


class Clock:
    """Time since the last line that was printed."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def show(self, name: str, factor: float, unit: str) -> None:
        """Print a time."""
        print(f"{name}: {(time.perf_counter() - self._last) * factor:.3g} {unit}")
        self._last = time.perf_counter()


if __name__ == "__main__":
    main()
