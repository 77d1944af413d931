"""Commands that install what is missing."""

from __future__ import annotations

import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install(extra: str) -> str:
    """Return the command that installs an extra of this package, from where the package is.

    A checkout is named by its path, since an index may not have the package.

    Examples
    --------
    >>> install("hub").startswith("pip install ")
    True
    """
    if (ROOT / "pyproject.toml").is_file():
        return f"pip install --editable {shlex.quote(f'{ROOT}[{extra}]')}"
    return f"pip install 'mlff-triton[{extra}]'"
