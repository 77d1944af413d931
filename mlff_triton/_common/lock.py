"""One writer per file or directory: a lock that ends with its process, however that ends.

The package filelock does not say which process holds a lock, leaves the file behind afterwards, and
raises on some file systems without locks.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlff_triton._common.files import reported
from mlff_triton.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class FileLock:
    """A context in which no other process may do the same work.

    The lock is advisory, and held on a file that exists only meanwhile or after a process was
    killed. The operating system releases it when the process ends. Windows, and file systems
    without locks, lock nothing.

    Parameters
    ----------
    path : Path
        The file, in a folder that exists when it is locked.
    refusal : str
        Rest of the message about the process that holds the lock: its work, and what to do.
    """

    def __init__(self, path: Path, refusal: str) -> None:
        self._path, self._refusal = path, refusal
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, unless this object already holds it.

        Raises
        ------
        OutputError
            If another process holds the lock, or the file cannot be written.
        """
        if fcntl is None or self._file is not None:
            return
        with reported(self._path):
            while self._file is None:
                self._file = self._opened()

    def release(self) -> None:
        """Remove the file, if this object holds the lock."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # a file that stays locks nothing
                self._path.unlink(missing_ok=True)
            os.close(file)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Take the lock, and keep it unless an error is raised in this context."""
        self.acquire()
        try:
            yield
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        """Release the lock of work that never begins."""
        self.release()

    def _opened(self) -> int | None:
        """Return the locked file; None if its last holder has just removed it."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock(file)
            if not self._path.exists() or not os.path.samestat(os.fstat(file), self._path.stat()):
                os.close(file)
                return None
            os.truncate(file, 0)
            with suppress(OSError):  # a full disk, which the work itself reports
                os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BaseException:
            os.close(file)
            raise
        return file

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                return
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            holder = os.read(file, 200).decode(errors="replace") or "another process"
            raise OutputError(f"{holder} {self._refusal}") from error
