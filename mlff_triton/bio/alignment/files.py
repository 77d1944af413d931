"""Records of FASTA and FASTQ files, gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

from mlff_triton._common.text import printable, shortened
from mlff_triton.errors import InputError

GZIP = b"\x1f\x8b"
COMMENT = b";"
BLANKS = b" \t\r\n"
BLOCK = 2**20  # bytes that are read at a time, and of a part of a longer line
MOST_SYMBOLS = 2**30  # of a record, more than scores in int32 allow
INFLATED, INFLATION = 2**30, 200  # bytes, or times its size, that a gzipped file may inflate to


class Record(NamedTuple):
    """A record of a FASTA or FASTQ file, with attributes named as in Biopython."""

    id: str
    seq: bytes


def read_records(path: Path, *, allow_empty: bool = False) -> Iterator[Record]:
    """Yield the records of a FASTA or FASTQ file, gzipped or not.

    Qualities are skipped, and so are comments in FASTA files, which are lines that begin with a
    semicolon. Control characters in names are replaced by escape sequences.

    Parameters
    ----------
    path : Path
        File to read.
    allow_empty : bool
        If True, a record may have no residues or bases. By default, it raises an error.

    Raises
    ------
    InputError
        If the file cannot be read, is truncated, or is neither FASTA nor FASTQ; if it is not a
        regular file, or if a record or a gzipped file is implausibly large.
    """
    reader = _Reader(path, allow_empty)
    label = reader.label
    try:
        yield from reader.records()
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        last = "before its first record" if reader.name is None else f"in {reader.record}"
        raise InputError(
            f"{label} is damaged or truncated {last}: restore the file ({problem})"
        ) from problem
    except OSError as problem:
        hint = " (put a single sequence into a list)" if str(path).isalpha() else ""
        reason = problem.strerror or problem
        raise InputError(f"{label} cannot be read: {reason}{hint}") from problem


class _Reader:
    """Reader of one file.

    Attributes
    ----------
    label : str
        Path of the file, for messages.
    name : str or None
        Name of the record that was begun last.
    """

    def __init__(self, path: Path, allow_empty: bool) -> None:
        self._allow_empty = allow_empty
        label = printable(path)
        self.path, self.label = path, label if len(label) < 256 else f"{label[:60]}..."
        self.name: str | None = None

    def records(self) -> Iterator[Record]:
        """Yield all records. The first symbol tells FASTA from FASTQ."""
        with self._opened() as lines:
            first = next((x for x in lines if x.strip(BLANKS) and not self._is_comment(x)), None)
            if first is None:
                raise InputError(f"{self.label} contains no records: is it the right file?")
            if not first.startswith((b">", b"@")):
                raise InputError(
                    f"{self.label} is not a FASTA or FASTQ file: it must begin with > or @"
                )
            read = self._fasta if first.startswith(b">") else self._fastq
            yield from read(chain([first], lines))

    def _fasta(self, lines: Iterator[bytes]) -> Iterator[Record]:
        self._begin(next(lines))
        parts: list[bytes] = []
        for line in lines:
            if line.startswith(b">"):
                yield self._record(parts)
                self._begin(line)
                parts = []
            elif not self._is_comment(line):
                parts.append(line)
        yield self._record(parts)

    def _fastq(self, lines: Iterator[bytes]) -> Iterator[Record]:
        for header in lines:
            if not header.strip(BLANKS):
                continue
            if not header.startswith(b"@"):
                raise InputError(
                    f"{self.label} has no @ after {self.record}: are its lines complete?"
                )
            self._begin(header)
            parts: list[bytes] = []
            for line in lines:
                if line.startswith(b"+"):
                    break
                parts.append(line)
            record = self._record(parts)
            missing = len(record.seq)
            for line in lines:
                missing -= len(line.translate(None, BLANKS))
                if missing <= 0:
                    break
            if missing:
                raise InputError(
                    f"{self.record} of {self.label} has {len(record.seq)} bases and "
                    f"{len(record.seq) - missing} qualities: is the file truncated?"
                )
            yield record

    def _is_comment(self, line: bytes) -> bool:
        """Return True for a comment of old FASTA files, which may be as long as a name line."""
        if not line.startswith(COMMENT):
            return False
        self._check_line(line, "comment")
        return True

    def _check_line(self, line: bytes, kind: str) -> None:
        """Raise an error if a line is incomplete, or consists of several lines."""
        if len(line) >= BLOCK:
            raise InputError(f"{self.label} has a {kind} of {BLOCK} bytes or more: shorten it")
        if b"\r" in line.rstrip(BLANKS):
            raise InputError(
                f"{self.label} has lines that end in a carriage return alone: convert them to Unix "
                "or Windows line ends"
            )

    def _begin(self, header: bytes) -> None:
        """Set the name to the first word of a header line."""
        self._check_line(header, "name line")
        words = header[1:].split(maxsplit=1)
        if not words:
            raise InputError(f"{self.label} has a record without a name: add one after the symbol")
        self.name = printable(words[0].decode("utf-8", "replace"))

    @property
    def record(self) -> str:
        """Name of the record in messages."""
        return f"record {shortened(self.name or '')}"

    def _record(self, lines: list[bytes]) -> Record:
        """Join the lines of a record."""
        if sum(map(len, lines)) > MOST_SYMBOLS:
            raise InputError(
                f"{self.record} of {self.label} has more than {MOST_SYMBOLS} residues or "
                "bases, which is too long to align: split it"
            )
        sequence = b"".join(lines).translate(None, BLANKS)
        if not sequence and not self._allow_empty:
            raise InputError(f"{self.record} of {self.label} is empty: is the file truncated?")
        return Record(cast("str", self.name), sequence)

    @contextmanager
    def _opened(self) -> Iterator[Iterator[bytes]]:
        """Open the file after any byte order mark, decompressed if it is gzipped."""
        path = self.path
        if "\0" in str(path):
            raise InputError(f"{self.label} is not a path: put a single sequence into a list")
        if path.exists() and not path.is_file() and not path.is_dir():
            kind = "pipe, which can be read only once" if path.is_fifo() else "device"
            raise InputError(f"{self.label} is a {kind}: save its content as a file")
        with path.open("rb") as plain:
            is_gzipped = plain.read(2) == GZIP
        most = max(INFLATED, INFLATION * path.stat().st_size) if is_gzipped else None
        with gzip.open(path, "rb") if is_gzipped else path.open("rb") as file:
            mark = file.read(3)
            if mark.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                raise InputError(f"{self.label} is UTF-16 text: save it as UTF-8")
            if mark != BOM_UTF8:
                file.seek(0)
            yield self._lines(cast("BufferedReader", file), most)

    def _lines(self, file: BufferedReader, most: int | None) -> Iterator[bytes]:
        """Yield the lines of a file without their ends, long ones in parts.

        The file may have at most ``most`` bytes.
        """
        done, rest = 0, b""
        for block in iter(partial(file.read1, BLOCK), b""):
            if b"\0" in block:
                raise InputError(
                    f"{self.label} contains bytes of value 0: it is damaged or not a text file"
                )
            done += len(block)
            if most is not None and done > most:
                raise InputError(
                    f"{self.label} inflates to more than {most / 2**30:.3g} GiB, the limit for a "
                    "gzipped file of its size: if it is the right one, decompress it with gunzip"
                )
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
            if len(rest) >= BLOCK:
                yield rest
                rest = b""
        if rest:
            yield rest
