"""Division of tasks whose workers die, so that only items that no worker survives are lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from typing import Any

from mlff_triton.errors import BackendError
from mlff_triton.jobs.workers import Divisible, Done, Pool, Result, Work

TRIES = 3  # of a task whose workers die
LOSSES = 5  # of items, one after another, that end the job


def finished(pool: Pool, work: Work, content: Any, name: str, result: Result) -> Done:
    """Wait for a task, and begin it again if its worker has died.

    If that happens repeatedly, the task is divided. An item that kills its worker alone has an
    error instead of results.

    Parameters
    ----------
    pool : Pool
        The workers.
    work : Work
        Their computation.
    content : object
        The task.
    name : str
        Name of the task, for messages.
    result : Result
        The running task.

    Returns
    -------
    Done
        Results of the task.

    Raises
    ------
    BackendError
        If workers die no matter what they compute, or the task cannot be divided.
    """
    for _ in range(TRIES - 1):
        if (done := _unless_lost(result)) is not None:
            return done
        result = pool.submit(content)
    if (done := _unless_lost(result)) is not None:
        return done
    if not isinstance(work, Divisible) or _unless_lost(pool.submit(work.nothing())) is None:
        raise BackendError(
            f"{TRIES} workers died, one after another, at {name}: look for a lack of memory; a "
            "script must start its work below if __name__ == '__main__'. The same call continues"
        )
    return _merged(work, list(_Division(pool, work, name).results(content)))


class _Division:
    """Results of the parts of a task, in order."""

    def __init__(self, pool: Pool, work: Divisible, name: str) -> None:
        self._pool, self._work, self._name = pool, work, name
        self._losses = 0  # since the last results

    def results(self, content: Any) -> Iterator[Done]:
        """Yield the results of parts of a content that has killed its worker."""
        parts = self._work.parts(content)
        for part in parts:
            done = _unless_lost(self._pool.submit(part))
            if done is not None:
                self._losses = 0
                yield done
            elif len(parts) > 1:
                yield from self.results(part)
            else:
                yield self._lost(part)

    def _lost(self, item: Any) -> Done:
        self._losses += 1
        if self._losses == LOSSES:
            raise BackendError(
                f"workers died at {LOSSES} items, one after another, at {self._name}: look for a "
                "lack of memory. The same call continues"
            )
        return self._work.lost(item, "workers die at it repeatedly: look for a lack of memory")


def _merged(work: Divisible, parts: list[Done]) -> Done:
    """Return the results of all parts of a task as one."""
    payload = work.merged([part.payload for part in parts])
    return Done(
        payload,
        items=sum(part.items for part in parts),
        errors=sum(part.errors for part in parts),
        first_error=next((part.first_error for part in parts if part.first_error), ""),
        warnings=tuple(dict.fromkeys(warning for part in parts for warning in part.warnings)),
        unknown=sum(part.unknown for part in parts),
    )


def _unless_lost(result: Result) -> Done | None:
    """Return the results of a task, or None if its worker has died."""
    try:
        return result.result()
    except BrokenExecutor:
        return None
