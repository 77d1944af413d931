"""Results of an unfinished job, and the journal of what is complete.

There are two files beside the output OUT. The bytes of each task are appended to ``OUT.partial``,
and then a line is added to ``OUT.journal``. Incomplete lines do not count, nor do bytes without a
line. Both are written through to the disk, so no result is lost or doubled, however a job ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from mlff_triton._common.files import check_new, reported
from mlff_triton._common.lock import FileLock
from mlff_triton.errors import OutputError

FORMAT = 1
COMPLETE = {"complete": True}
ENDINGS = ("partial", "journal", "lock", "new")  # of the names of files beside the output

Settings = Mapping[str, str | int | float | bool | None]
Finish = Callable[[Iterator[bytes], Path], None]


@dataclass(frozen=True)
class Entry:
    """A task whose results are complete.

    Attributes
    ----------
    check : int
        CRC-32 of the task's input.
    size : int
        Bytes of its results.
    items, errors : int
        Number of results, and number of errors among them.
    unknown : int
        Number of results outside the training set of the model.
    """

    check: int
    size: int
    items: int
    errors: int
    unknown: int = 0


class Journal:
    """Files beside the output of a job, as a context that locks them.

    Parameters
    ----------
    out : Path
        The output.
    settings : mapping
        Everything that results depend on, apart from the input.
    overwrite : bool
        If True, replace an existing output and the remains of a job with other settings.

    Attributes
    ----------
    entries : list of Entry
        Complete tasks, in order.
    is_complete : bool
        True if no task is left.
    was_killed : bool
        True if the last process of the job had no time to remove its lock.

    Raises
    ------
    OutputError
        On entry: if the output exists, if an unfinished job has other settings, if another process
        works on it, or if files cannot be written.
    """

    def __init__(self, out: Path, settings: Settings, overwrite: bool = False) -> None:
        self.out, self._overwrite = out, overwrite
        self._head = {"format": FORMAT, **settings}
        self._partial, self._path = beside(out, "partial"), beside(out, "journal")
        self._lock = FileLock(
            beside(out, "lock"), f"is writing {out}: wait for its end, stop it, or choose another"
        )
        self.entries: list[Entry] = []
        self.is_complete = self.was_killed = False
        self._files: tuple[FileIO, FileIO] | None = None

    def __enter__(self) -> Journal:
        if not self._path.exists():
            check_new(self.out, self._overwrite)
        self.was_killed = beside(self.out, "lock").exists()
        with self._lock.kept(), reported(self.out):
            length = self._load() if self._path.exists() else 0
            if self.is_complete and not self._partial.exists() and not self.out.exists():
                self.entries, self.is_complete, length = [], False, 0  # the output was removed
            if not self.is_complete:
                check_new(self.out, self._overwrite)
                try:
                    self._open(length)
                except BaseException:
                    self._leave()
                    raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with reported(self.out):
                self._leave()
        finally:
            self._lock.release()

    def _leave(self) -> None:
        """Close the files, and remove them if there is nothing to continue."""
        is_open = self._files is not None
        self._close()
        if is_open and not any(entry.items for entry in self.entries):
            self._remove()

    def append(self, payload: bytes, entry: Entry) -> None:
        """Add the results of the next task.

        Raises
        ------
        OutputError
            If they cannot be written. Then the next call writes nothing behind a part of them.
        """
        assert self._files is not None
        partial, journal = self._files
        with reported(self.out):
            _write_through(partial, payload)
            _write_through(journal, _line(asdict(entry)))
        self.entries.append(entry)

    def clear(self) -> None:
        """Forget all results.

        Raises
        ------
        OutputError
            If the files cannot be written.
        """
        with reported(self.out):
            partial, journal = self._files = self._files or self._opened()
            self.entries, self.is_complete = [], False
            for file in (journal, partial):
                file.seek(0)
                file.truncate()
            _write_through(journal, _line(self._head))

    def finish(self, finish: Finish | None = None) -> None:
        """Turn the results into the output, and remove all other files.

        Parameters
        ----------
        finish : callable, optional
            Writes the results of tasks to a path. By default, the output is their concatenation.

        Raises
        ------
        OutputError
            If that fails, or somebody has removed the results.
        """
        with reported(self.out):
            if self._files is not None and not self._partial.exists():
                raise OutputError(
                    f"{self._partial} was removed: the results are lost, the same call begins again"
                )
            if self._files is not None and not self.is_complete:
                _write_through(self._files[1], _line(COMPLETE))
            self._close()
            if self._partial.exists():  # otherwise, the output is in its place already
                made = self._partial
                if finish is not None:
                    made = self._finished(finish)
                made.replace(self.out)
            self._remove()

    def _finished(self, finish: Finish) -> Path:
        """Turn the results into a new file, and return its path."""
        made = beside(self.out, "new")
        try:
            finish(self._payloads(), made)
            with made.open("r+b") as file:
                os.fsync(file.fileno())
        except BaseException:
            made.unlink(missing_ok=True)
            raise
        return made

    def _payloads(self) -> Iterator[bytes]:
        with self._partial.open("rb") as file:
            for entry in self.entries:
                yield file.read(entry.size)

    def _load(self) -> int:
        """Read the journal up to its last whole line; return the number of bytes up to there."""
        length = 0
        for line in self._path.read_bytes().splitlines(keepends=True):
            record = _parsed(line)
            if record is None:
                break
            if length == 0 and record != self._head:
                if self._overwrite:
                    return 0
                raise OutputError(_refusal(self.out, record, self._head))
            if record == COMPLETE:
                self.is_complete = True
                break
            if length:
                self.entries.append(Entry(**record))
            length += len(line)
        if self._partial.exists():
            missing = self._size() - self._partial.stat().st_size
            if missing > 0:
                raise OutputError(
                    f"{self._partial} lacks {missing} bytes: restore it, or remove "
                    f"{self._path.name} to begin again"
                )
        return length

    def _open(self, length: int) -> None:
        """Open both files behind the last complete task."""
        is_new = not length or not self._partial.exists()
        partial, journal = self._files = self._opened()
        if is_new:
            self.clear()
            return
        for file, end in ((partial, self._size()), (journal, length)):
            file.seek(end)
            file.truncate()

    def _opened(self) -> tuple[FileIO, FileIO]:
        """Open the files of results and journal unbuffered, so that a full disk is noticed."""
        partial = _unbuffered(self._partial)
        try:
            return partial, _unbuffered(self._path)
        except BaseException:
            partial.close()
            raise

    def _size(self) -> int:
        """Return the bytes of all results."""
        return sum(entry.size for entry in self.entries)

    def _remove(self) -> None:
        """Remove all files but the output, the journal last."""
        self._partial.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        files, self._files = self._files or (), None
        with ExitStack() as stack:
            for file in files:
                stack.callback(file.close)


def beside(out: Path, ending: str) -> Path:
    """Return the path of a file beside the output, which may be a folder without a name."""
    return out.parent / f"{out.name}.{ending}"


def _unbuffered(path: Path) -> FileIO:
    """Open a file to read and write, and make it if there is none."""
    return FileIO(path, "r+" if path.exists() else "w+")


def _write_through(file: FileIO, content: bytes) -> None:
    """Write bytes, and wait until they are on disk."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, or None if the line is not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _refusal(out: Path, head: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the message about a job that was begun with other settings."""
    names = [name for name in {**head, **wanted} if head.get(name) != wanted.get(name)]
    before = ", ".join(f"{name}={head.get(name)}" for name in names)
    return (
        f"{out} was begun with {before}: repeat that to continue, use --overwrite to begin again, "
        "or choose another name"
    )
