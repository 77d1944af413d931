"""Number of steps between looks at a simulation."""

from __future__ import annotations

import time

LOOK_EVERY = 0.2  # s; time of a block of steps, after which a run can be interrupted
LARGEST = 2000  # steps


class Pace:
    """Size of blocks of steps that take 0.2 s each, if no size is given.

    Parameters
    ----------
    fixed : int or None
        Number of steps in every block.

    Attributes
    ----------
    block : int
        Number of steps in the next block.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.block = fixed or 1
        self._is_fixed = fixed is not None
        self.start(0)

    def start(self, step: int) -> None:
        """Start measuring after a number of steps."""
        self._step, self._looked = step, time.monotonic()

    def look(self, step: int) -> None:
        """Adapt the size of blocks to the time that the steps since the last look took."""
        seconds = max(time.monotonic() - self._looked, 1e-9)
        if not self._is_fixed and step > self._step:
            wanted = LOOK_EVERY * (step - self._step) / seconds
            self.block = int(min(max(wanted, 1), 2 * self.block, LARGEST))
        self.start(step)
