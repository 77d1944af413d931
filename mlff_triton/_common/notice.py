"""A line on standard error while something takes longer than expected."""

from __future__ import annotations

import logging
import sys
import time

QUIET = 1.0  # s before anything is shown

_LOG = logging.getLogger("mlff_triton")


class Notice:
    """A context in which texts replace each other on a terminal, or else the first one is logged.

    Nothing is shown in the first second.
    """

    def __enter__(self) -> Notice:
        self._begin, self._told = time.monotonic(), ""
        return self

    def show(self, text: str) -> None:
        """Show a text instead of the last one."""
        if text == self._told or time.monotonic() < self._begin + QUIET:
            return
        if is_terminal():
            sys.stderr.write("\r" + text)
            sys.stderr.flush()
        elif not self._told:
            _LOG.info(text)
        self._told = text

    def __exit__(self, *_: object) -> None:
        """Remove the text from a terminal."""
        if self._told and is_terminal():
            sys.stderr.write("\r" + " " * len(self._told) + "\r")


def is_terminal() -> bool:
    """Return True if standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()
