"""Ctrl-C and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A context in which the first signal is only recorded and a second one acts as usual.

    Calling the object returns True once a signal has been received. Like signal handlers, it works
    only in the main thread.
    """

    def __init__(self) -> None:
        self._received = False
        self._previous = {number: signal.getsignal(number) for number in SIGNALS}

    def __call__(self) -> bool:
        """Return True if a signal has been received."""
        return self._received

    def __enter__(self) -> StopRequest:
        for number in SIGNALS:
            signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore_handlers()

    def _record(self, number: int, stack: FrameType | None) -> None:
        del number, stack
        self._received = True
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
