"""Sample geometries of the start structures and label them with GFN2-xTB.

Usage: ``python make_data.py --out data --workers 16 --minutes 9``

The work is a list of independent, seeded tasks. Each writes one file atomically, so the same
command resumes a run that was interrupted or ran out of time. ``--minutes 0`` only merges finished
tasks. Needs tblite: ``pip install mlff-triton[train]``.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path
from typing import Any

import numpy as np
from labels import free_atoms, label
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sampling import sample
from structures import read_structures
from tasks import SPLITS, Task, first_of_each_kind, plan

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SHARD_BYTES = 14_000_000  # before compression
LOST_AFTER = 150.0  # seconds; tasks are shorter, so the worker must have died
GRACE = 30.0  # seconds for running tasks to finish after the deadline
EXIT_INTERRUPTED = 130  # the exit code of shells after Ctrl-C

Arrays = dict[str, NDArray[Any]]


def run_task(task: Task, folder: Path) -> int:
    """Sample and label the configurations of one task and write its file.

    Returns
    -------
    int
        Number of configurations kept.
    """
    begin = time.perf_counter()
    frames = list(sample(task))
    numbers = np.concatenate([s.numbers for s in task.pieces])
    charge = sum(s.charge for s in task.pieces)
    labels = label(numbers, charge, frames)
    n_kept = len(labels["energy"])
    save(
        folder / f"{task.name}.npz",
        {
            "numbers": numbers.astype(np.int8),
            "charge": np.array(charge, np.int8),
            "split": np.array(task.split, np.int8),
            "discarded": np.array(len(frames) - n_kept),
            "seconds": np.array(time.perf_counter() - begin),
            **labels,
        },
    )
    return n_kept


def save(path: Path, arrays: Arrays) -> None:
    """Write an npz file atomically."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    partial.replace(path)


def run_tasks(tasks: list[Task], folder: Path, workers: int, deadline: float) -> None:
    """Run the tasks in order; start none after the deadline."""
    queue = iter(tasks)
    running: dict[AsyncResult[int], tuple[Task, float]] = {}
    n_kept = 0
    columns = (
        TextColumn("sampling"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks, {task.fields[n_kept]} configurations"),
        TimeRemainingColumn(),
    )
    with start_pool(workers) as pool, Progress(*columns) as progress:
        row = progress.add_task("", total=len(tasks), n_kept=0)
        while (now := time.monotonic()) < deadline + GRACE:
            if now < deadline:
                for task in itertools.islice(queue, workers + 2 - len(running)):
                    running[pool.apply_async(run_task, (task, folder))] = task, now
            if not running:
                break
            time.sleep(0.02)
            for result in [r for r in running if r.ready()]:
                n_kept += outcome(running.pop(result)[0], result)
                progress.update(row, advance=1, n_kept=n_kept)
            for result in [r for r, (_, start) in running.items() if now - start > LOST_AFTER]:
                logging.warning("lost %s", running.pop(result)[0].name)


def start_pool(workers: int) -> Pool:
    """Start the workers, each on one core."""
    # Workers read these variables when they load NumPy and tblite.
    os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")
    # Only this process handles Ctrl-C. The first workers inherit the ignored signal, and later ones
    # ignore it themselves.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # Spawned workers share no state; replacing them regularly bounds leaks of compiled code.
        context = multiprocessing.get_context("spawn")
        return context.Pool(workers, ignore_interrupts, maxtasksperchild=100)
    finally:
        signal.signal(signal.SIGINT, handler)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, which the parent process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def outcome(task: Task, result: AsyncResult[int]) -> int:
    """Return the number of configurations of a finished task; log a failed task."""
    try:
        return result.get()
    except Exception:
        logging.exception("failed %s", task.name)
        return 0


def merge(folder: Path, out: Path) -> None:
    """Merge the finished tasks into shards of flat arrays."""
    paths = sorted(folder.glob("*.npz"))
    parts = [flattened(path, index) for index, path in enumerate(paths)]
    sizes = np.cumsum([sum(a.nbytes for a in part.values()) for part in parts])
    if not len(sizes) or not sizes[-1]:
        sys.exit(f"no configurations in {folder}: run longer with --minutes")
    shards = math.ceil(sizes[-1] / SHARD_BYTES)
    owner = np.minimum(sizes * shards // sizes[-1], shards - 1)
    common = {
        "task_names": np.array([path.stem for path in paths]),
        "split_names": np.array(list(SPLITS)),
        **free_atoms(),
    }
    for shard in range(shards):
        chosen = [part for part, o in zip(parts, owner, strict=True) if o == shard]
        arrays = {key: np.concatenate([part[key] for part in chosen]) for key in chosen[0]}
        save(out / f"data_{shard}.npz", arrays | common)
        print(f"data_{shard}.npz: {len(arrays['energy'])} configurations")


def flattened(path: Path, index: int) -> Arrays:
    """Read the file of a task as flat arrays, with one entry per configuration or per atom."""
    with np.load(path) as task:
        count, n = len(task["energy"]), len(task["numbers"])
        return {
            "n_atoms": np.full(count, n, np.int16),
            "numbers": np.tile(task["numbers"], count),
            "positions": task["positions"].reshape(-1, 3),
            "energy": task["energy"],
            "forces": task["forces"].reshape(-1, 3),
            "charge": np.full(count, task["charge"], np.int8),
            "split": np.full(count, task["split"], np.int8),
            "task": np.full(count, index, np.int32),
        }


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--structures", type=Path, default=Path(__file__).with_name("structures.xyz")
    )
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit")
    parser.add_argument("--limit", type=int, help="tasks of each kind, for a trial run")
    args = parser.parse_args()
    if not args.structures.is_file():
        parser.error(f"there is no {args.structures}: create it with structures.py")
    return args


def main() -> None:
    """Run the unfinished tasks, then merge all tasks."""
    begin = time.monotonic()
    args = parse_arguments()
    folder = args.out / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    tasks = plan(read_structures(args.structures))
    if args.limit is not None:
        tasks = first_of_each_kind(tasks, args.limit)
    open_tasks = [task for task in tasks if not (folder / f"{task.name}.npz").exists()]
    print(f"{len(open_tasks)} of {len(tasks)} tasks to do")
    try:
        run_tasks(open_tasks, folder, args.workers, begin + 60 * args.minutes)
        merge(folder, args.out)
    except KeyboardInterrupt:
        print("interrupted: finished tasks are kept, and the same command resumes", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
