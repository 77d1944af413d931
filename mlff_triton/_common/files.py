"""Files that are written completely or not at all, and errors of writing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

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

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    with reported(path):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            partial.chmod(0o644)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def find_file(source: str | Path) -> Path | None:
    """Return the path of a file, which may begin with ``~``; None if there is no such file."""
    path = path_of(source)
    return path if os.path.isfile(path) else None  # noqa: PTH113 - never raises


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


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into `OutputError`."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
