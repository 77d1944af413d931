"""Folder of compiled loops, which can be inspected without Numba."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mlff_triton._common import cache
from mlff_triton.errors import OutputError

KIND = "loops"
NUMBA_FOLDER = "NUMBA_CACHE_DIR"  # environment variable
KERNELS = Path(__file__).parents[2]


def root() -> Path | None:
    """Return the folder that the user has set for Numba, unless one is set for this package."""
    if cache.FOLDER in os.environ or not os.environ.get(NUMBA_FOLDER):
        return None
    return Path(os.environ[NUMBA_FOLDER], "mlff_triton")


def has_loops() -> bool:
    """Return True if loops have been compiled since the package was installed.

    They may be loops of another precision: the names of files say nothing without Numba.
    """
    with suppress(OSError, OutputError):
        sources = max(path.stat().st_mtime for path in KERNELS.glob("*/cpu/*.py"))
        files = ((root() or cache.folder()) / KIND).iterdir()
        return any(path.stat().st_mtime > sources for path in files)
    return False
