"""Definition of a kind of case, and of the errors that checks raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Facts = dict[str, Any]
"""Numbers, strings and lists that a check needs in addition to the files of a case."""


class Finding(Exception):  # noqa: N818 - the word of the report
    """A check found a fault of the package."""


class Refusal(Exception):  # noqa: N818 - the word of the report
    """The package refused the input, in a process or a program where no exception shows it."""


@dataclass(frozen=True)
class Kind:
    """Cases that are checked in the same way.

    Attributes
    ----------
    generators : mapping
        Functions by name. Each draws a case, writes its files to a folder, and returns its facts.
    check : callable
        Function of the folder and the facts of a case. It returns if an oracle confirms the result,
        passes on the exceptions of the package or raises `Refusal`, and raises `Finding` for a
        fault. The current directory is the folder.
    is_refused : bool
        True if some cases are refused as a whole, rather than in part or not at all.
    """

    generators: Mapping[str, Callable[[np.random.Generator, Path], Facts]]
    check: Callable[[Path, Facts], None]
    is_refused: bool = True
