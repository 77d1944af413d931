"""Lines of text files with bounded length, and the error for a file that cannot be divided."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import IO

LONGEST = 1 << 20  # bytes of a line
LINES = 1 << 16  # that are read at a time
MOST_ATOMS = 10**8  # of a record
MOST_BYTES = 1 << 33  # of a record whose number of atoms is announced
MOST_TEXT = 1 << 28  # bytes of a record that ends where the next one begins


class DividingError(ValueError):
    """Records of a file cannot be told apart from here on."""


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; a longer one in pieces."""
    while line := file.readline(LONGEST):
        yield line


def announced_lines(file: IO[bytes], count: int, record: int) -> list[bytes]:
    """Read as many lines as the head of a record announces, one per atom."""
    lines: list[bytes] = []
    size, missing = 0, count
    while missing:
        some = list(islice(file, min(missing, LINES)))
        missing -= len(some)
        size += sum(map(len, some))
        lines += some
        if not some or size > MOST_BYTES:
            raise DividingError(f"frame {record} lacks {missing} of its {count} atoms")
    return lines


def announced_count(head: bytes, record: int) -> int:
    """Return the number of atoms in a line that holds nothing else."""
    words = head.split()
    if len(words) != 1 or not words[0].isdigit():
        raise DividingError(f"frame {record} does not begin with its number of atoms")
    if int(words[0][:10]) > MOST_ATOMS:
        raise DividingError(
            f"frame {record} does not begin with its number of atoms, but announces "
            f"{words[0][:20].decode()} atoms"
        )
    return int(words[0])


def checked_size(lines: list[bytes], size: int, record: int) -> int:
    """Return the size of a record with its last line, or refuse a record that never ends."""
    size += len(lines[-1]) if lines else 0
    if size > MOST_TEXT:
        raise DividingError(f"frame {record} has more than {MOST_TEXT >> 20} MB")
    return size


def text_lines(text: bytes) -> list[str]:
    """Return the lines of a text, decoded as UTF-8 or, if that fails, as Latin-1."""
    try:
        whole = text.decode("utf-8-sig")
    except UnicodeDecodeError:
        whole = text.decode("latin-1")
    return whole.replace("\r\n", "\n").replace("\r", "\n").split("\n")
