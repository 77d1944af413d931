"""Progress of a command: a live bar on a terminal, or else a line of text now and then."""

from __future__ import annotations

import threading
import time
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlff_triton._common.text import duration

SECONDS_BETWEEN_LINES = 60.0

Self = TypeVar("Self", bound="ProgressBar")


class ProgressBar:
    """A bar with a title, the completed steps, a text, and the remaining time.

    Where there is no terminal, a line is printed each minute, even while a step takes longer.

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
        self._started = self._last_line = time.monotonic()
        self._line = title
        self._ended, self._lock = threading.Event(), threading.Lock()
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
        self._line = line
        self._print_if_due()

    def _print_if_due(self) -> None:
        with self._lock:
            now = time.monotonic()
            if not self.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
                self._last_line = now
                line = f"{self._line} ({duration(now - self._started)})"
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _watch(self) -> None:
        """Print lines while a step takes longer than the time between them."""
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            self._print_if_due()

    def __enter__(self: Self) -> Self:
        self._bar.start()
        if not self.console.is_terminal and SECONDS_BETWEEN_LINES:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._bar.stop()
