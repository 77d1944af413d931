"""Files that are written completely or not at all, and errors of writing."""

from __future__ import annotations

import io
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from mlff_triton.errors import InputError, OutputError


def path_of(given: object) -> Path:
    """Return a path that a user gives, which may begin with ``~``, or raise `InputError`."""
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(f"a file is given by its path, not by a {type(given).__name__}")
    return Path(os.path.expanduser(given))  # noqa: PTH111 - keeps the names of unknown users


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file, which holds its old content until all of the new one is written.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces another one on success, and is deleted on failure.

    Its permissions are those of any new file.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    with reported(path):
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with partial.open("xb") as file:
                yield file
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


class LenientFile(io.FileIO):
    """A new file for libraries that cannot close a file to which they could not write.

    The first error is kept, and everything after it is dropped, so that the library comes to its
    end. `check` raises the error.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write all of the data, unless an earlier call has failed."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self._error is None and len(rest):
                rest = rest[super().write(rest) :]
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size of the file, unless an earlier call has failed."""
        try:
            if self._error is None:
                return super().truncate(size)
        except OSError as error:
            self._error = error
        return size or 0

    def check(self) -> None:
        """Raise the first error."""
        if self._error is not None:
            raise self._error


def find_file(source: str | Path) -> Path | None:
    """Return the path of a file, which may begin with ``~``; None if there is no such file."""
    path = path_of(source)
    return path if os.path.isfile(path) else None  # noqa: PTH113 - never raises


def fingerprint(folder: Path) -> int | None:
    """Return a CRC-32 of names, sizes and times of files, or None if there is no such folder."""
    if not folder.is_dir():
        return None
    marks = ((file.name, file.stat()) for file in sorted(folder.iterdir()))
    text = "\n".join(f"{name} {at.st_size} {at.st_mtime_ns}" for name, at in marks)
    return zlib.crc32(text.encode())


def check_new(path: Path, overwrite: bool) -> None:
    """Raise an `OutputError` if a file must not or cannot be written; modify nothing."""
    with reported(path):
        if path.is_dir():
            raise OutputError(f"{path} is a directory: choose another name")
        if not path.parent.is_dir():
            raise OutputError(
                f"{path.parent} is not a directory: create it, or choose another name"
            )
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists: choose another name, or use --overwrite")
        if not os.access(path.parent, os.W_OK):  # before hours of computation
            raise OutputError(f"cannot write {path}: its folder is read-only")


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into `OutputError`."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise OutputError(f"cannot write {path}: {reason}") from error
