"""Judgment of exceptions and of the texts that users see."""

from __future__ import annotations

import traceback
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from mlff_triton.errors import MlffTritonError
from tests.fuzz.kind import Finding, Refusal

CONFIRMED, REFUSED, FINDING = "confirmed", "refused", "finding"
LONGEST_MESSAGE = 2000
OUT_OF_MEMORY = "can't allocate memory"  # PyTorch raises a RuntimeError with these words


@dataclass(frozen=True)
class Verdict:
    """Judgment of one case: confirmed, refused or a finding, and a line that says why."""

    status: str
    reason: str = ""


def verdict_on(error: BaseException) -> Verdict:
    """Return the verdict on an exception that a check raised."""
    if isinstance(error, Finding):
        return Verdict(FINDING, str(error))
    if isinstance(error, Refusal):
        return Verdict(REFUSED, str(error))
    if any(_is_out_of_memory(cause) for cause in _causes(error)):
        return Verdict(FINDING, f"memory over the limit, {_location(error)}")
    if not isinstance(error, MlffTritonError):
        text = repr(str(error)[:200])
        return Verdict(FINDING, f"foreign {type(error).__name__}, {_location(error)}: {text}")
    problem = problem_of(str(error))
    if problem:
        return Verdict(FINDING, f"{problem}, {_location(error)}: {str(error)[:300]!r}")
    return Verdict(REFUSED, f"{type(error).__name__}: {error}")


def problem_of(text: str, *, most_lines: int = 1) -> str:
    """Return the fault of a text for users, or an empty string.

    Examples
    --------
    >>> problem_of("no such file")
    ''
    >>> problem_of("red: \\x1b[31m")
    'text with control characters'
    """
    if "Traceback" in text:
        return "text with a traceback"
    if "weights_only" in text or "can still be loaded" in text:
        return "text with the advice to disable safe loading"
    if any(unicodedata.category(letter) == "Cc" and letter not in "\n\t" for letter in text):
        return "text with control characters"
    if len(text.strip().splitlines()) > most_lines:
        return f"text of more than {most_lines} lines"
    return "text that is too long" if len(text) > LONGEST_MESSAGE * most_lines else ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or OUT_OF_MEMORY in str(error)


def _location(error: BaseException) -> str:
    """Return the last line of the package that the exception passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/mlff_triton/" in frame.filename]
    if not own:
        return "outside the package"
    path = own[-1].filename.rsplit("/mlff_triton/", 1)[1]
    return f"in mlff_triton/{path}:{own[-1].lineno}"
