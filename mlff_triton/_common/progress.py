"""Progress of a command: a live bar on a terminal, or else a line of text now and then."""

from __future__ import annotations

import time
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0

Self = TypeVar("Self", bound="ProgressBar")


class ProgressBar:
    """A bar with a title, the completed steps, a text, and the remaining time.

    Parameters
    ----------
    console : Console
        Console to print to.
    title : str
        Title of the work.
    total, done : int
        Number of all steps, and of those completed before.
    """

    def __init__(self, console: Console, title: str, total: int, done: int = 0) -> None:
        self.console = console
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, completed=done, state="")

    def show(
        self, done: int, state: str, line: str, title: str | None = None, total: int | None = None
    ) -> None:
        """Show the completed steps with a text, or a line where there is no bar."""
        self._bar.update(self._task, description=title, completed=done, total=total, state=state)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            self.console.print(line, highlight=False)

    def __enter__(self: Self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
