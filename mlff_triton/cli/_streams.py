"""Output streams of a command that take any text, and whose reader may be gone.

Terminals that are not UTF-8 get the closest ASCII characters. A command whose output is piped into
``head``, or whose terminal is gone, goes on with its work. A stream that is closed from the start
is replaced, since the first file that the command opens would otherwise take its number.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from types import TracebackType
from typing import TextIO

HANDLER = "mlff_triton.closest"
CLOSEST = {"µ": "u", "μ": "u", "±": "+/-", "°": " deg", "×": "x", "…": "...", "→": "->"}
LINES = {"─": "-", "━": "-", "│": "|", "┃": "|", "╸": "-", "╺": "-"}  # other parts of boxes are +
BOX = range(0x2500, 0x2580)


class Streams:
    """A context with output streams that never raise.

    Attributes
    ----------
    failure : str
        Reason why text could not be written to stdout, unless nobody reads it; empty if it could.
    """

    failure = ""

    def __enter__(self) -> Streams:
        codecs.register_error(HANDLER, _closest)
        for descriptor in range(3):
            _reopen_if_closed(descriptor)
        self._before = sys.stdout, sys.stderr
        self._pipes: list[_Pipe] = []
        sys.stdout, sys.stderr = self._safe(sys.stdout, 1), self._safe(sys.stderr, 2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = self._before

    def check(self) -> None:
        """Write what is left, and find out if all of stdout could be written."""
        sys.stdout.flush()
        self.failure = next((pipe.failure for pipe in self._pipes if pipe.fileno() == 1), "")

    def _safe(self, stream: TextIO | None, descriptor: int) -> TextIO:
        """Return a stream that does the same, and never raises."""
        if stream is not None and _number(stream) != descriptor:
            return stream  # of a test or a notebook
        encoding = "utf-8" if stream is None else stream.encoding
        if stream is not None:
            stream.flush()
        pipe = _Pipe(descriptor, "w", closefd=False)
        self._pipes.append(pipe)
        is_prompt = descriptor == 2 or pipe.isatty()
        return io.TextIOWrapper(
            io.BufferedWriter(pipe), encoding, HANDLER, line_buffering=is_prompt
        )


class _Pipe(io.FileIO):
    """A stream of bytes that goes nowhere once it cannot be written."""

    failure = ""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                self.failure = error.strerror or str(error)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)  # type: ignore[arg-type]


def _number(stream: TextIO) -> int | None:
    """Return the number of a stream's file, or None if it has no file."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _reopen_if_closed(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _closest(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII text for characters that a terminal does not know."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(map(_ascii, text)), error.end


def _ascii(character: str) -> str:
    if character in CLOSEST:
        return CLOSEST[character]
    if ord(character) in BOX:
        return LINES.get(character, "+")
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or character.encode("unicode_escape").decode()
