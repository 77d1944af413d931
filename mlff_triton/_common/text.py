"""Text of files and of other libraries, as part of a message of one line."""

from __future__ import annotations

LONGEST = 200  # characters of another library's message


def printable(value: object) -> str:
    """Return a value as text, with control characters escaped, which could change a terminal."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if there is none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0][:LONGEST])
