"""Structures of many or huge files, divided into tasks without being parsed.

The process that divides them only finds where frames of XYZ files begin; workers parse the text.
Small files of other formats are read by workers as a whole. Large ones, which are trajectories, are
read frame by frame.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import ase.io
from ase import Atoms
from ase.io.formats import open_with_compression

from mlff_triton._common.files import path_of
from mlff_triton._common.text import first_line, printable
from mlff_triton.dynamics.structures import SHIPPED, read_images, read_structure
from mlff_triton.errors import InputError
from mlff_triton.jobs.job import Task
from mlff_triton.jobs.journal import ENDINGS, beside
from mlff_triton.statics.single_points import plain_info

STRUCTURES = 1024  # per task, at most
BYTES = 1 << 21  # of input per task, about
FILES = 128  # per task, at most
LARGE = 1 << 22  # bytes of a file that is not read as a whole
FRAMES = 128  # of such a file at a time
XYZ = (".xyz", ".extxyz")
COMPRESSED = (".gz", ".bz2", ".xz")
MOST_ATOMS = 10**8  # of a frame
MOST_FRAME = 1 << 33  # bytes of a frame
LONGEST = 1 << 20  # bytes of a line
LINES = 1 << 16  # that are read at a time

Parsed = tuple[str, int, Atoms | str]
"""Source, frame, and the structure or the reason why there is none."""


@dataclass(frozen=True)
class Text:
    """Frames of an XYZ file as text.

    Attributes
    ----------
    source : str
        Name of the file.
    first : int
        Number of the first frame, from 0.
    frames : tuple of bytes
        Text of each frame.
    """

    source: str
    first: int
    frames: tuple[bytes, ...]

    def parse(self) -> Iterator[Parsed]:
        """Yield the structures."""
        try:
            images: Sequence[Atoms | str] = _parsed(b"".join(self.frames))
            if len(images) != len(self.frames):
                raise ValueError("frames overlap")
        except Exception:  # noqa: BLE001 - ASE raises many kinds
            images = [_parsed_alone(frame) for frame in self.frames]
        for k, image in enumerate(images, self.first):
            yield self.source, k, image


@dataclass(frozen=True)
class File:
    """A small file, or a shipped structure.

    Attributes
    ----------
    source : str
        Name as it was given.
    path : str
        Absolute path, as workers may run elsewhere.
    """

    source: str
    path: str = ""

    def parse(self) -> Iterator[Parsed]:
        """Yield the structures."""
        try:
            shipped = self.source in SHIPPED
            images = [read_structure(self.source)] if shipped else read_images(self.path)
            if not images:
                raise InputError(f"{self.source} contains no structures")
        except InputError as error:
            yield self.source, 0, str(error)
            return
        for k, image in enumerate(images):
            yield self.source, k, image


@dataclass(frozen=True)
class Frames:
    """Frames of a trajectory, as ASE reads them."""

    source: str
    first: int
    images: tuple[Atoms, ...]

    def parse(self) -> Iterator[Parsed]:
        """Yield the structures."""
        for k, image in enumerate(self.images, self.first):
            yield self.source, k, image


Piece = Text | File | Frames


class _Sized(NamedTuple):
    """A piece with its size in structures, files and bytes, its checksum, and where it ends."""

    piece: Piece
    structures: int
    files: int
    size: int
    check: int
    position: int


def find_files(structures: str | Path | Iterable[str | Path]) -> list[str]:
    """Return the files to read. A folder stands for its files, in the order of their names.

    Raises
    ------
    InputError
        If a file is missing, a folder is empty, or nothing is given.
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
            files = sorted(str(file) for file in path.iterdir() if file.is_file())
            if not files:
                raise InputError(f"the folder {path} contains no files")
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


def without_output(files: Sequence[str], out: Path) -> list[str]:
    """Return the files without those of an unfinished job, which may lie in the same folder.

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
    """Return the bytes of all files, in which the position of a task is measured."""
    return sum(Path(name).stat().st_size for name in files if name not in SHIPPED)


def tasks_of(files: Sequence[str]) -> Iterator[Task]:
    """Yield the tasks of files, whose contents are lists of pieces.

    Raises
    ------
    InputError
        If a file cannot be divided into frames.
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


def _pieces(files: Sequence[str]) -> Iterator[_Sized]:
    """Yield pieces that are at most as large as a task."""
    before = 0
    for source in files:
        if source in SHIPPED:
            yield _Sized(File(source), 1, 1, 0, zlib.crc32(source.encode()), before)
            continue
        path = Path(source)
        status = path.stat()
        if _is_xyz(path):
            yield from _texts(path, before)
        elif status.st_size <= LARGE:
            mark = f"{source} {status.st_size} {status.st_mtime_ns}"
            whole, end = File(source, str(path.absolute())), before + status.st_size
            yield _Sized(whole, 1, 1, status.st_size, zlib.crc32(mark.encode()), end)
        else:
            yield from _frames(path, before)
        before += status.st_size


def _is_xyz(path: Path) -> bool:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in XYZ


def _texts(path: Path, before: int) -> Iterator[_Sized]:
    """Yield the frames of an XYZ file, which may be compressed, some at a time."""
    source, size = str(path), path.stat().st_size
    is_plain = path.suffix.lower() not in COMPRESSED
    try:
        with open_with_compression(source, "rb") as file:
            frames: list[bytes] = []
            first = total = read = 0
            for frame in _frames_of_xyz(file, source):
                if frames and (len(frames) == STRUCTURES or total + len(frame) > BYTES):
                    end = before + min(read, size) if is_plain else before
                    yield _text(source, first, frames, end)
                    first, total = first + len(frames), 0
                    frames = []
                frames.append(frame)
                total += len(frame)
                read += len(frame)
            if not frames:
                raise InputError(f"{printable(source)} contains no structures")
            yield _text(source, first, frames, before + size)
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{printable(source)} cannot be read: {first_line(error)}") from error


def _text(source: str, first: int, frames: list[bytes], end: int) -> _Sized:
    check = 0
    for frame in frames:
        check = zlib.crc32(frame, check)
    size = sum(map(len, frames))
    return _Sized(Text(source, first, tuple(frames)), len(frames), 0, size, check, end)


def _frames_of_xyz(file: IO[bytes], source: str) -> Iterator[bytes]:
    """Yield the text of each frame: a line with the number of atoms, a comment, and the atoms."""
    number = 0
    while head := file.readline(LONGEST):
        if not head.strip():
            if not file.read(LONGEST).strip():  # blank lines at the end
                return
            raise _damaged(source, number, "begins with a blank line")
        words = head.split()
        if len(words) != 1 or not words[0].isdigit() or int(words[0][:10]) > MOST_ATOMS:
            raise _damaged(source, number, "does not begin with its number of atoms")
        lines, missing, size = [head, file.readline(LONGEST)], int(words[0]), 0
        while missing:
            some = list(islice(file, min(missing, LINES)))
            missing -= len(some)
            size += sum(map(len, some))
            lines += some
            if not some or size > MOST_FRAME:
                raise _damaged(source, number, f"lacks {missing} of its {int(words[0])} atoms")
        if not lines[1].endswith(b"\n") and words[0] != b"0":
            raise _damaged(source, number, "lacks its comment")
        yield b"".join(lines)
        number += 1


def _damaged(source: str, number: int, problem: str) -> InputError:
    return InputError(f"{printable(source)} is damaged or truncated: frame {number} {problem}")


def _parsed(text: bytes) -> list[Atoms]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about fields that are not used here
        return list(ase.io.read(io.StringIO(text.decode()), ":", format="extxyz"))


def _parsed_alone(frame: bytes) -> Atoms | str:
    """Return the structure of a frame, or the reason why there is none."""
    try:
        (image,) = _parsed(frame)
    except KeyError as error:
        return f"the frame cannot be read: there is no element {error}"
    except Exception as error:  # noqa: BLE001 - ASE raises many kinds
        return f"the frame cannot be read: {first_line(error)}"
    return image


def _frames(path: Path, before: int) -> Iterator[_Sized]:
    """Yield the frames of a trajectory that is not XYZ, some at a time."""
    source = str(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            images: Iterator[Any] = ase.io.iread(source, ":")
            first = 0
            while some := tuple(islice(images, FRAMES)):
                check = 0
                for atoms in some:
                    atoms.calc = None
                    for array in (atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc):
                        check = zlib.crc32(array.tobytes(), check)
                    check = zlib.crc32(repr(plain_info(atoms.info)).encode(), check)
                yield _Sized(Frames(source, first, some), len(some), 0, 0, check, before)
                first += len(some)
    except Exception as error:
        raise InputError(
            f"{printable(source)} cannot be read as a structure: {first_line(error)}"
        ) from error
    if first == 0:
        raise InputError(f"{printable(source)} contains no structures")
