"""Structures of many or huge files, divided into tasks without being parsed.

The process that divides them only finds where the records of text formats begin; workers parse the
text. Workers read small files of other formats as a whole. Large files, which are trajectories, are
read frame by frame.
"""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ase import Atoms

from mlff_triton._common.files import path_of
from mlff_triton._common.text import printable
from mlff_triton.calculators._total_charge import noted_charge
from mlff_triton.dynamics.structures import SHIPPED, read_structure
from mlff_triton.errors import InputError, MlffTritonError
from mlff_triton.jobs.job import Task, until_failure
from mlff_triton.jobs.journal import ENDINGS, beside
from mlff_triton.readers import (
    COMPRESSED,
    FORMATS,
    Format,
    ase_frames,
    find_format,
    frames_of,
    is_structure_file,
    texts_of,
)
from mlff_triton.statics.single_points import plain_info

STRUCTURES = 1024  # per task, at most
BYTES = 1 << 21  # of input per task, about
FILES = 128  # per task, at most
LARGE = 1 << 22  # bytes of a file that is not read as a whole
FRAMES = 128  # of such a file at a time
XYZ = (".xyz", ".extxyz")

Parsed = tuple[str, int, Atoms | str]
"""Source, frame, and the structure or the reason why it is missing."""


@dataclass(frozen=True)
class Text:
    """Records of a file as text.

    Attributes
    ----------
    source : str
        Name of the file.
    first : int
        Number of the first record, from 0.
    frames : tuple of bytes
        Text of each record.
    format : str
        Name of their format, of `mlff_triton.readers.FORMATS`.
    """

    source: str
    first: int
    frames: tuple[bytes, ...]
    format: str = "xyz"

    def parse(self) -> Iterator[Parsed]:
        """Yield the structures."""
        images = FORMATS[self.format].structures(self.frames)
        for k, image in enumerate(images, self.first):
            yield self.source, k, image

    def halves(self) -> Sequence[Text]:
        """Return two parts, or the same one if it has one frame."""
        middle, frames = len(self.frames) // 2, self.frames
        left = replace(self, frames=frames[:middle])
        right = replace(self, frames=frames[middle:], first=self.first + middle)
        return (left, right) if middle else (self,)


@dataclass(frozen=True)
class File:
    """A small file, or a shipped structure.

    Attributes
    ----------
    source : str
        Name as given.
    path : str
        Absolute path, because workers may run elsewhere.
    """

    source: str
    path: str = ""
    first = 0  # frame

    def parse(self) -> Iterator[Parsed]:
        """Yield the structures."""
        images: Sequence[Atoms | str]
        try:
            shipped = self.source in SHIPPED
            images = [read_structure(self.source)] if shipped else [*frames_of(Path(self.path))]
            if not images:
                raise InputError(f"{self.source} contains no structures")
        except InputError as error:
            yield self.source, 0, str(error)
            return
        except OSError as error:
            yield self.source, 0, f"the file cannot be read: {error.strerror}"
            return
        for k, image in enumerate(images):
            yield self.source, k, image

    def halves(self) -> Sequence[File]:
        """Return the file itself, since its content is unknown."""
        return (self,)


@dataclass(frozen=True)
class Frames:
    """Frames of a trajectory, as ASE reads them; methods are those of `Text`."""

    source: str
    first: int
    images: tuple[Atoms, ...]

    def parse(self) -> Iterator[Parsed]:
        """Yield the structures."""
        for k, image in enumerate(self.images, self.first):
            yield self.source, k, image

    def halves(self) -> Sequence[Frames]:
        """Return two parts, or the same one if it has one frame."""
        middle, images = len(self.images) // 2, self.images
        left = replace(self, images=images[:middle])
        right = replace(self, images=images[middle:], first=self.first + middle)
        return (left, right) if middle else (self,)


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be read, or only up to some record; methods are those of `File`."""

    source: str
    first: int
    reason: str

    def parse(self) -> Iterator[Parsed]:
        """Yield the reason."""
        yield self.source, self.first, self.reason

    def halves(self) -> Sequence[Unreadable]:
        """Return the file itself, which cannot be divided."""
        return (self,)


Piece = Text | File | Frames | Unreadable


class _Sized(NamedTuple):
    """A piece with its size in structures, files and bytes, its checksum, and where it ends."""

    piece: Piece
    structures: int
    files: int
    size: int
    check: int
    position: int


def find_files(structures: str | Path | Iterable[str | Path]) -> list[str]:
    """Return the files to read.

    A folder stands for its structure files, known by their suffixes, in the order of their names.
    Files that cannot be read are included, so that each gets an error.

    Raises
    ------
    InputError
        If a file is missing, a folder contains no files of structures, or nothing is given.
    """
    given = [structures] if isinstance(structures, (str, Path)) else list(structures)
    found: list[str] = []
    for source in given:
        if str(source) in SHIPPED:
            found.append(str(source))
            continue
        path = path_of(source)
        if "\0" in str(path):
            raise InputError(f"{printable(path)} is not a path")
        if path.is_dir():
            files = sorted(str(file) for file in path.iterdir() if _is_meant(file))
            if not files:
                raise InputError(f"the folder {path} contains no files of structures")
            found += files
        elif path.is_file():
            found.append(str(path))
        else:
            raise InputError(
                f"there is no structure {printable(source)!r}: give a file, a folder, or one of "
                f"{', '.join(SHIPPED)}"
            )
    if not found:
        raise InputError("there are no structures: give at least one file")
    return found


def _is_meant(file: Path) -> bool:
    """Return True if an entry of a folder is a structure by its name, or a folder by its suffix."""
    return is_structure_file(file) and bool(file.suffix or not file.is_dir())


def without_output(files: Sequence[str], out: Path) -> list[str]:
    """Return the files, except those of an unfinished job, which may lie in the same folder.

    Raises
    ------
    InputError
        If the output itself is one of the files.
    """
    own, *others = (str(path.absolute()) for path in (out, *(beside(out, end) for end in ENDINGS)))
    absolute = {name: str(Path(name).absolute()) for name in files}
    if own in absolute.values():
        raise InputError(f"{out} is among the structures: choose another name or folder")
    return [name for name in files if absolute[name] not in others]


def total_size(files: Sequence[str]) -> int:
    """Return the size of all files in bytes, the unit of the position of a task."""
    return sum(_size(Path(name)) for name in files if name not in SHIPPED)


def tasks_of(files: Sequence[str]) -> Iterator[Task]:
    """Yield the tasks of files, whose contents are lists of pieces.

    A file that cannot be read, or only up to some frame, is one piece without structures.

    Raises
    ------
    InputError
        If that is the only file.
    """
    gathered: list[_Sized] = []
    for sized in _pieces(files):
        if gathered and _is_full([*gathered, sized]):
            yield _task(gathered)
            gathered = []
        gathered.append(sized)
    if gathered:
        yield _task(gathered)


def _is_full(gathered: list[_Sized]) -> bool:
    _, structures, n_files, sizes, *_ = zip(*gathered, strict=True)
    return bool(sum(structures) > STRUCTURES or sum(n_files) > FILES or sum(sizes) > BYTES)


def _task(gathered: list[_Sized]) -> Task:
    check = 0
    for sized in gathered:
        check = zlib.crc32(sized.check.to_bytes(4, "little"), check)
    first = gathered[0].piece
    name = first.source if isinstance(first, File) else f"{first.source}, frame {first.first}"
    return Task([sized.piece for sized in gathered], check, gathered[-1].position, name)


def _size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _pieces(files: Sequence[str]) -> Iterator[_Sized]:
    """Yield pieces that are at most as large as a task."""
    before = 0
    for source in files:
        if source in SHIPPED:
            yield _Sized(File(source), 1, 1, 0, zlib.crc32(source.encode()), before)
            continue
        path, count = Path(source), 0
        size = _size(path)
        try:
            for sized in _of_file(path, before):
                yield sized
                count += sized.structures
        except InputError as error:
            if len(files) == 1:
                raise
            reason = str(error)
            check = zlib.crc32(reason.encode())
            yield _Sized(Unreadable(source, count, reason), 1, 1, 0, check, before + size)
        before += size


def _of_file(path: Path, before: int) -> Iterator[_Sized]:
    """Yield the pieces of a file.

    Raises
    ------
    InputError
        If the file cannot be read or is empty, or if frames cannot be told apart after some point.
    """
    source = str(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            kind = "directory" if path.is_dir() else "pipe or device"
            raise InputError(f"{printable(source)} is a {kind}, not a file")
        path.open("rb").close()
    except OSError as error:
        raise InputError(f"{printable(source)} cannot be read: {error.strerror}") from error
    format_ = find_format(path)
    pieces: Iterator[_Sized] = iter(())
    if format_ is not None:
        pieces = _texts(path, format_, before, status.st_size)
    elif status.st_size > LARGE:
        pieces = _frames(path, before)
    elif status.st_size:
        mark = f"{source} {status.st_size} {status.st_mtime_ns}"
        whole, end = File(source, str(path.absolute())), before + status.st_size
        pieces = iter([_Sized(whole, 1, 1, status.st_size, zlib.crc32(mark.encode()), end)])
    is_empty = True
    for sized in pieces:
        yield sized
        is_empty = False
    if is_empty:
        raise InputError(f"{printable(source)} contains no structures")


def _texts(path: Path, kind: Format, before: int, size: int) -> Iterator[_Sized]:
    """Yield the records of a file, some at a time; the file may be compressed."""
    source = str(path)
    is_plain = path.suffix.lower() not in COMPRESSED
    frames: list[bytes] = []
    first = total = read = 0
    failures: list[MlffTritonError] = []
    for frame in until_failure(texts_of(path, kind), failures):
        if frames and (len(frames) == STRUCTURES or total + len(frame) > BYTES):
            end = before + min(read, size) if is_plain else before
            yield _text(source, first, frames, kind, end)
            first, total = first + len(frames), 0
            frames = []
        frames.append(frame)
        total += len(frame)
        read += len(frame)
    if frames:
        yield _text(source, first, frames, kind, before + size)
    for failure in failures:
        raise failure


def _text(source: str, first: int, frames: list[bytes], kind: Format, end: int) -> _Sized:
    check = 0
    for frame in frames:
        check = zlib.crc32(frame, check)
    size = sum(map(len, frames))
    piece = Text(source, first, tuple(frames), kind.name)
    return _Sized(piece, len(frames), 0, size, check, end)


def _frames(path: Path, before: int) -> Iterator[_Sized]:
    """Yield the frames of a trajectory that ASE reads, some at a time."""
    source, first = str(path), 0
    images = ase_frames(path)
    while some := tuple(islice(images, FRAMES)):
        check = 0
        for atoms in some:
            for array in (atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc):
                check = zlib.crc32(array.tobytes(), check)
            check = zlib.crc32(repr(plain_info(atoms.info | noted_charge(atoms))).encode(), check)
        yield _Sized(Frames(source, first, some), len(some), 0, 0, check, before)
        first += len(some)
