"""Files that grow by complete records of bytes and can be cut to an earlier size."""

from __future__ import annotations

import os
from pathlib import Path

from mlff_triton._common.files import reported
from mlff_triton.errors import OutputError


class AppendOnlyFile:
    """A file that grows by complete records.

    Parameters
    ----------
    path : path
        The file. The first record creates it.
    size : int
        Number of bytes to keep of an existing file; `cut` removes the rest.

    Attributes
    ----------
    path : Path
        The file.
    size : int
        Its size in bytes after the last complete record.

    Raises
    ------
    OutputError
        If an existing file is shorter than ``size``, or cannot be read.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        with reported(path):
            if path.exists() and not path.is_file():
                raise OutputError(f"{path} is not a file: remove it, or restore the original")
            present = path.stat().st_size if path.exists() else 0
            if present < size:
                raise OutputError(
                    f"{path} has {present} bytes, but the restart file expects {size}: "
                    "restore the original"
                )

    def cut(self) -> None:
        """Remove what follows the last record to keep.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        with reported(self.path):
            if self.path.exists() and self.path.stat().st_size > self.size:
                os.truncate(self.path, self.size)

    def append(self, record: bytes) -> None:
        """Append a record in one system call. If that fails, remove the part already written.

        Raises
        ------
        OutputError
            If the record cannot be written, or the size of the file has changed since the last
            record.
        """
        with reported(self.path), self.path.open("ab", buffering=0) as file:
            present = file.tell()
            if present != self.size:
                raise OutputError(
                    f"{self.path} has {present} bytes instead of {self.size}, as something else "
                    "has written to it: continue with --restart once nothing else does"
                )
            try:
                written = file.write(record)
            except OSError:
                file.truncate(self.size)
                raise
            if written != len(record):
                file.truncate(self.size)
                raise OutputError(f"cannot write {self.path}: the disk is full, free some space")
        self.size += len(record)

    def overwrite(self, offset: int, data: bytes) -> None:
        """Replace bytes inside the file.

        Raises
        ------
        OutputError
            If they cannot be written.
        """
        with reported(self.path), self.path.open("r+b", buffering=0) as file:
            file.seek(offset)
            file.write(data)
