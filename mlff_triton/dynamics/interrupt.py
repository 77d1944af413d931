"""Ctrl-C and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While entered, the first signal is only remembered; a second one acts as usual.

    Works in the main thread only, as signals do.
    """

    def __init__(self) -> None:
        self._received = False
        self._previous = {number: signal.getsignal(number) for number in SIGNALS}

    def __call__(self) -> bool:
        """Whether a signal came."""
        return self._received

    def __enter__(self) -> StopRequest:
        for number in SIGNALS:
            signal.signal(number, self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._give_back()

    def _remember(self, number: int, stack: FrameType | None) -> None:
        del number, stack
        self._received = True
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
