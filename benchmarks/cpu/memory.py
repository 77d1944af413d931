"""Peak of the memory of this process, as far as the operating system tells it."""

from __future__ import annotations

import ctypes
import gc
import re
from contextlib import suppress
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Peak:
    """The largest resident memory since this object was made.

    Linux alone tells it, and some containers do not let the earlier peak be forgotten.
    """

    def __init__(self) -> None:
        gc.collect()
        with suppress(AttributeError, OSError, TypeError):  # of glibc alone
            ctypes.CDLL(None).malloc_trim(0)  # gives back what it keeps for later
        self._before: float | None = None
        try:
            RESET.write_text("5")
        except OSError:
            self._before = _peak_mib()

    def mib(self) -> float | None:
        """Return the peak in MiB; None if it is unknown, as below an earlier one."""
        found = _peak_mib()
        return None if found == self._before else found


def _peak_mib() -> float | None:
    found = PEAK.search(STATUS.read_text()) if STATUS.exists() else None
    return float(found[1]) / 1024 if found else None
