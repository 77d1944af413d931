"""Import of matplotlib, which takes over half a second, whatever the environment says."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BACKEND = "MPLBACKEND"  # environment variable; with an unknown name, the import would fail


def figure_class() -> type[Figure]:
    """Return the class of figures, which needs no backend to save one."""
    wanted = None if "matplotlib" in sys.modules else os.environ.pop(BACKEND, None)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    finally:
        if wanted is not None:
            os.environ[BACKEND] = wanted
    if wanted:
        with suppress(ValueError):  # an unknown name, which only matters to windows
            mpl.rcParams["backend"] = wanted
    return Figure
