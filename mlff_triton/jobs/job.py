"""The run of a job: tasks go to workers, and results to the output in the order of the input."""

from __future__ import annotations

import time
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mlff_triton.errors import InputError, MlffTritonError, OutputError
from mlff_triton.jobs.division import finished
from mlff_triton.jobs.journal import Entry, Finish, Journal, Settings
from mlff_triton.jobs.workers import Done, Pool, Result, Work, local_pool

WARNINGS = 10  # of each class that are given

Item = TypeVar("Item")


class Task(NamedTuple):
    """A part of the input.

    Attributes
    ----------
    content : object
        Argument of the work; picklable.
    check : int
        CRC-32 of the input, which must be the same when the job is continued.
    position : int
        Amount of input up to the end of the task, in the unit of the job's progress.
    name : str
        Name of the part, for messages.
    """

    content: Any
    check: int
    position: int
    name: str


@dataclass(frozen=True)
class Job:
    """Work on an input.

    Attributes
    ----------
    tasks : callable
        Returns the tasks of the input: the same ones in the same order at every call.
    work : Work
        Computation of a task.
    out : Path
        The output.
    settings : mapping
        Everything that results depend on, apart from the input.
    head : bytes
        Start of the output.
    finish : callable, optional
        Turns the results of tasks into the output. By default, they are concatenated.
    """

    tasks: Callable[[], Iterable[Task]]
    work: Work
    out: Path
    settings: Settings
    head: bytes = b""
    finish: Finish | None = None


@dataclass(frozen=True)
class Workers:
    """Workers, as users name them.

    Attributes
    ----------
    device : str
        "auto" (all GPUs if there are any), "all", "cpu", "cuda:1", "cuda:0,cuda:1" and so on.
    processes : int or None
        Number of processes on this machine; None for one per device, or this process for a single
        one.
    scheduler : str or None
        Address or file of a Dask scheduler, whose workers compute instead of this machine.
    """

    device: str = "auto"
    processes: int | None = None
    scheduler: str | None = None

    def pool(self, work: Work, *, apart: bool = False) -> Pool:
        """Return the workers for a computation; with ``apart``, never in this process."""
        if self.scheduler is None:
            return local_pool(work, self.device, self.processes, apart=apart)
        if self.processes is not None:
            raise InputError(
                "workers are processes of this machine, and a scheduler has its own: give only one "
                "of them"
            )
        from mlff_triton.jobs.cluster import Cluster

        return Cluster(work, self.scheduler, self.device)


class Progress(NamedTuple):
    """Results of a job so far.

    Attributes
    ----------
    items, errors : int
        Number of results, and number of errors among them.
    resumed : int
        Number of results that an earlier run of the job has computed.
    start, position : int
        Amount of input that earlier runs have computed, and amount computed so far.
    seconds : float
        Time of this run.
    first_error : str
        Message of the first error of this run.
    is_complete : bool
        True if no input is left.
    unknown : int
        Number of results outside the training set of the model.
    """

    items: int = 0
    errors: int = 0
    resumed: int = 0
    start: int = 0
    position: int = 0
    seconds: float = 0.0
    first_error: str = ""
    is_complete: bool = False
    unknown: int = 0

    def after(self, done: Done, position: int, began: float) -> Progress:
        """Return the progress with another task."""
        return self._replace(
            items=self.items + done.items,
            errors=self.errors + done.errors,
            unknown=self.unknown + done.unknown,
            position=position,
            seconds=time.monotonic() - began,
            first_error=self.first_error or done.first_error,
        )


def run(
    job: Job,
    workers: Workers = Workers(),
    *,
    overwrite: bool = False,
    show: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Run a job, or continue it.

    Parameters
    ----------
    job : Job
        The job.
    workers : Workers
        Workers; by default those of this machine.
    overwrite : bool
        If True, replace an output that exists, and begin again if settings or input have changed.
    show : callable
        Called with the progress after each task.
    stop : callable
        Function that returns True to stop after the current task. The same call continues the job.

    Returns
    -------
    Progress
        Counts of the job with all its runs.

    Raises
    ------
    InputError, BackendError, OutputError
        If the input, the workers or the output cannot be used. Complete tasks are kept.
    """
    began, given = time.monotonic(), Counter[type[Warning] | str]()
    with Journal(job.out, job.settings, overwrite) as journal:
        _begin(job, journal)
        tasks, position = _rest(job, journal, overwrite)
        progress = _resumed(journal)._replace(start=position, position=position)
        if not journal.is_complete:
            show(progress)
            with workers.pool(job.work, apart=journal.was_killed) as pool:
                for task, done in _ordered(pool, job.work, tasks):
                    journal.append(done.payload, _entry(task, done))
                    _give(done, given)
                    progress = progress.after(done, task.position, began)
                    show(progress)
                    if stop():
                        return progress
        journal.finish(job.finish)
    return progress._replace(seconds=time.monotonic() - began, is_complete=True)


def _begin(job: Job, journal: Journal) -> None:
    """Write the head of a new output."""
    if job.head and not journal.entries:
        journal.append(job.head, Entry(zlib.crc32(job.head), len(job.head), 0, 0))


def _resumed(journal: Journal) -> Progress:
    """Return the progress of earlier runs."""
    items, errors, unknown = (
        sum(getattr(entry, name) for entry in journal.entries)
        for name in ("items", "errors", "unknown")
    )
    return Progress(items, errors, resumed=items, unknown=unknown)


def _rest(job: Job, journal: Journal, overwrite: bool) -> tuple[Iterator[Task], int]:
    """Return the tasks that are left, and the position of the first one.

    Raises
    ------
    OutputError
        If the input of complete tasks has changed, and must not be overwritten.
    """
    tasks = iter(job.tasks())
    change, position = _change(job, journal, tasks)
    if not change:
        return tasks, position
    if not overwrite:
        raise OutputError(
            f"{job.out} was begun with other input ({change}): restore that to continue, use "
            "--overwrite to begin again, or choose another name"
        )
    journal.clear()
    _begin(job, journal)
    return iter(job.tasks()), 0


def _change(job: Job, journal: Journal, tasks: Iterator[Task]) -> tuple[str, int]:
    """Skip the complete tasks. Return any change of their input, and the end of the last one."""
    entries, position = journal.entries, 0
    if job.head:
        head, *entries = entries
        if head.check != zlib.crc32(job.head):
            return "the start of the output", position
    for entry in entries:
        task = next(tasks, None)
        if task is None:
            return f"its input ends early, by {position}", position
        if task.check != entry.check:
            return task.name, position
        position = task.position
    if journal.is_complete and (task := next(tasks, None)) is not None:
        return task.name, position
    return "", position


def _ordered(pool: Pool, work: Work, tasks: Iterator[Task]) -> Iterator[tuple[Task, Done]]:
    """Yield tasks with their results, in order, while workers compute the next ones.

    An error of the input is raised after the results of all tasks before it.
    """
    begun: deque[tuple[Task, Result]] = deque()
    failures: list[MlffTritonError] = []

    def first() -> tuple[Task, Done]:
        task, result = begun.popleft()
        return task, finished(pool, work, task.content, task.name, result)

    for task in until_failure(tasks, failures):
        begun.append((task, pool.submit(task.content)))
        while len(begun) >= pool.capacity:
            yield first()
    while begun:
        yield first()
    for failure in failures:
        raise failure


def until_failure(items: Iterator[Item], failures: list[MlffTritonError]) -> Iterator[Item]:
    """Yield items, and put an error that ends them into a list."""
    try:
        yield from items
    except MlffTritonError as error:
        failures.append(error)


def _entry(task: Task, done: Done) -> Entry:
    return Entry(task.check, len(done.payload), done.items, done.errors, done.unknown)


def _give(done: Done, given: Counter[type[Warning] | str]) -> None:
    """Issue the first warnings of each class. Every worker may have issued the same ones."""
    for kind, text in done.warnings:
        if given[kind] < WARNINGS and not given[text]:
            given[kind] += 1
            given[text] += 1
            warnings.warn(text, kind, stacklevel=3)
