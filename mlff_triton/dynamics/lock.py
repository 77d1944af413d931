"""One simulation per directory."""

from __future__ import annotations

from pathlib import Path

from mlff_triton._common.lock import FileLock

LOCK = ".lock"


class DirectoryLock(FileLock):
    """A context in which no other run may write to a directory.

    If locking is not possible, a run only notices records that another run has appended.

    Parameters
    ----------
    directory : Path
        The directory, which exists when it is locked.
    """

    def __init__(self, directory: Path) -> None:
        refusal = (
            f"is computing in {directory}: wait for its end, stop it, or choose another directory"
        )
        super().__init__(directory / LOCK, refusal)
