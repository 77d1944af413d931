"""Options, progress and exit codes of commands that run jobs of many tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mlff_triton.cli._exits import EXIT_INCOMPLETE, EXIT_INTERRUPTED, complain
from mlff_triton.cli._shared import outside, plain_console

if TYPE_CHECKING:
    from mlff_triton.jobs.job import Progress

ManyDevicesOption = Annotated[
    str,
    typer.Option(help="Device: auto (all GPUs if there are any), cpu, cuda:1 or cuda:0,cuda:1."),
]
WORKERS = "Processes on this machine, which share the GPUs."
WorkersOption = Annotated[
    int | None, typer.Option(help=WORKERS, show_default="one per GPU, or the command itself")
]
ReadersOption = Annotated[
    int | None,
    typer.Option(
        help=WORKERS, show_default="one per GPU, more for large input, or the command itself"
    ),
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        help="Address of a Dask scheduler, or the file that it has written: its workers compute."
    ),
]
UNIT = 1000  # bytes of input per step of the progress bar

Show = Callable[["Progress"], None]
Stop = Callable[[], bool]


def run_job(what: str, out: Path, size: int, job: Callable[[Show, Stop], Progress]) -> None:
    """Run a job with a progress bar, say what it has done, and exit with the right code.

    Parameters
    ----------
    what : str
        Name of the results, such as "structures".
    out : Path
        The output.
    size : int
        Bytes of input.
    job : callable
        Runs the job. Its arguments show the progress, and say when to stop.
    """
    from mlff_triton._common.interrupt import StopRequest
    from mlff_triton._common.progress import ProgressBar

    console, plain = Console(), plain_console()
    with StopRequest() as stop, ProgressBar(console, what, size // UNIT) as bar:

        def show(progress: Progress) -> None:
            if progress.resumed and progress.items == progress.resumed:
                plain.print(f"continues after {_count(progress.resumed, what)}")
            state = f"kB, {_count(progress.items, what)}, {_speed(progress)}"
            amount = f"{progress.position / 1e6:.1f} of {size / 1e6:.1f} MB"
            line = f"{_count(progress.items, what)}, {amount}"
            bar.show(min(progress.position, size) // UNIT, state, line)

        progress = job(show, stop)
    if not progress.is_complete:
        complain(f"stopped after {_count(progress.items, what)}: the same command continues")
        raise typer.Exit(EXIT_INTERRUPTED)
    plain.print(f"wrote {out}: {_count(progress.items, what)}, {_speed(progress)}")
    if progress.unknown:
        complain(outside(progress.unknown, _count(progress.items, what)))
    if progress.errors:
        first = f", the first of {progress.first_error}" if progress.first_error else ""
        complain(
            f"errors instead of results: {progress.errors} of {_count(progress.items, what)}{first}"
        )
        raise typer.Exit(EXIT_INCOMPLETE)


def _count(number: int, what: str) -> str:
    return f"{number} {what if number != 1 else what.removesuffix('s')}"


def _speed(progress: Progress) -> str:
    rate = (progress.items - progress.resumed) / max(progress.seconds, 1e-9)
    return f"{rate:.3g}/s"
