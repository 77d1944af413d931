"""Files that are written whole or not at all, and what is said when that fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mlff_triton.errors import OutputError


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that is the old one or the new one, whole.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open another name for writing, and rename it when all went well; else nothing is left of it.

    Raises
    ------
    OutputError
        If it cannot be written.
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


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into ours."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
