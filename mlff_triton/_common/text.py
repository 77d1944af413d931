"""Text of files and of other libraries, as part of a message of one line."""

from __future__ import annotations

import reprlib

LONGEST = 200  # characters of another library's message

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 1
_SHORT.maxstring = _SHORT.maxother = 80


def printable(value: object) -> str:
    """Return a value as text; control characters, which could change a terminal, are escaped."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(value: object) -> str:
    """Return a value as text in one line, with control characters escaped."""
    return printable(" ".join(str(value).split()))


def shortened(value: object) -> str:
    """Return at most `LONGEST` characters of a value as text."""
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if there is none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shortened(printable(lines[0]))


def short_repr(value: object) -> str:
    """Return a short ``repr`` of one line, even of a list that contains itself many times."""
    return one_line(_SHORT.repr(value))


def duration(seconds: float) -> str:
    """Return a time in words.

    Examples
    --------
    >>> duration(130)
    '2 min'
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
