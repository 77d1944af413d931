"""How far a command is: a live bar on a terminal, else a plain line now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0

Self = TypeVar("Self", bound="ProgressBar")


class ProgressBar:
    """A bar with a title, what is done of all, a text, and the time that is left.

    Parameters
    ----------
    console : Console
        Where to show it.
    title : str
        Of what is done.
    total, done : int
        How much there is, and how much of it was done before.
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

    def show(self, done: int, state: str, line: str, title: str | None = None) -> None:
        """Show how much is done, a text beside it, and where there is no bar a line."""
        self._bar.update(self._task, description=title, completed=done, state=state)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            self.console.print(line, highlight=False)

    def __enter__(self: Self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()
