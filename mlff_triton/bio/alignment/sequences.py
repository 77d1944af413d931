"""Sequences of letters: from strings, records, files and tensors to codes."""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.errors import InputError

GZIP = b"\x1f\x8b"
BLANKS = b" \t\r\n"
AT_A_TIME = 256  # sequences that are joined: they stay in the cache
UPLOADED = 2**11  # sequences that go to a GPU at once, while the host joins the next
TRANSLATED = 2**24  # letters that a GPU translates at once: each takes four bytes more
UNKNOWN = 255  # code of a letter that the matrix does not have


class Record(NamedTuple):
    """A record of a FASTA file; Biopython's have these attributes too."""

    id: str
    seq: bytes


class Sequences(NamedTuple):
    """Sequences as codes; they may be apart, and come in their order.

    Attributes
    ----------
    names : sequence of str, or range
        Of records; the places in a list of those that have no names.
    letters : uint8 [S]
        Codes of all letters, on any device.
    start, length : int64 [n]
        On the CPU: a sequence is ``letters[start : start + length]``.
    """

    names: Sequence[str] | range
    letters: Tensor
    start: Tensor
    length: Tensor

    def part(self, first: int, last: int) -> Sequences:
        """Sequences ``first : last``, and no letters but theirs."""
        if last - first == len(self.names):
            return self
        begin = int(self.start[first])
        end = int(self.start[last - 1] + self.length[last - 1])
        return Sequences(
            self.names[first:last],
            self.letters[begin:end],
            self.start[first:last] - begin,
            self.length[first:last],
        )


class Alphabet:
    """Letters and their codes, which are their places in a substitution matrix.

    Upper and lower case are the same.

    Parameters
    ----------
    letters : str
        Of the matrix, in upper case.
    unknown : str, optional
        The letter that others are taken for; by default they are refused.
    device : torch.device, optional
        The one that translates text, and keeps the codes; by default the host does.
    """

    def __init__(
        self, letters: str, unknown: str | None = None, *, device: torch.device | None = None
    ) -> None:
        if not letters.isascii():
            raise InputError(f"a matrix has letters of ASCII, which {letters} are not")
        self.letters, self._device = letters, device
        codes = bytearray([UNKNOWN]) * 256
        if unknown is not None:
            if not isinstance(unknown, str) or len(unknown) != 1 or unknown.upper() not in letters:
                raise InputError(f"unknown={unknown!r} is none of the letters {letters}")
            codes = bytearray([letters.index(unknown.upper())]) * 256
        for code, letter in enumerate(letters):
            codes[ord(letter)] = codes[ord(letter.lower())] = code
        self._codes = bytes(codes)
        self._letters = letters.encode().ljust(256, b"?")

    def read(self, source: Any, kind: str) -> Sequences:
        """Encode whatever holds sequences.

        Parameters
        ----------
        source : path, iterable of str, bytes or records, or (tensor, lengths)
            As `align` takes it.
        kind : str
            What to call one of them in messages.

        Raises
        ------
        InputError
            If there are none, or one of them cannot be read; the message has its name.
        """
        if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], Tensor):
            found = self._of_tensors(*source, kind)
        elif isinstance(source, str | PathLike):
            records = list(read_fasta(Path(source)))
            names, texts = [record.id for record in records], [record.seq for record in records]
            found = self._of_texts(names, texts, kind)
        else:
            found = self._of_items(source, kind)
        if len(found.names) == 0:
            raise InputError(f"there is no {kind}: give one at least")
        return found

    def decode(self, sequences: Sequences) -> list[str]:
        """Letters of sequences."""
        text = sequences.letters.cpu().numpy().tobytes().translate(self._letters).decode("ascii")
        places = zip(sequences.start.tolist(), sequences.length.tolist(), strict=True)
        return [text[first : first + length] for first, length in places]

    def _of_items(self, source: Iterable[Any], kind: str) -> Sequences:
        """Encode what a program has; that all of many are str is seen when they are joined."""
        if isinstance(source, list) and source and isinstance(source[0], str):
            with suppress(TypeError):
                return self._of_texts(range(len(source)), source, kind)
        return self._of_texts(*_texts(source, kind), kind)

    def _of_texts(
        self, names: Sequence[str] | range, texts: list[str] | list[bytes], kind: str
    ) -> Sequences:
        """Encode all; which record is wrong is asked if one is."""
        places = range(0, max(1, len(texts)), UPLOADED)
        is_text = isinstance(next(iter(texts), ""), str)
        encoded = [self._encode(texts[k : k + UPLOADED], is_text) for k in places]
        length, letters = map(torch.cat, zip(*encoded, strict=True))
        if self._device is not None:
            self._translate(letters)
        if len(letters) and int(letters.max()) == UNKNOWN:
            raise self._refusal(names, texts, kind)
        return Sequences(names, letters, length.cumsum(0) - length, length)

    def _encode(self, texts: list[str] | list[bytes], is_text: bool) -> tuple[Tensor, Tensor]:
        """Lengths of texts, and their codes; on a device, which is to translate them, letters."""
        length = torch.from_numpy(np.fromiter(map(len, texts), np.int64, len(texts)))
        is_pinned = self._device is not None and self._device.type == "cuda"
        letters = torch.empty(int(length.sum()), dtype=torch.uint8, pin_memory=is_pinned)
        if self._device is None:
            _write((raw.translate(self._codes) for raw in _joined(texts, is_text)), letters)
            return length, letters
        _write(_joined(texts, is_text), letters)
        return length, letters.to(self._device, non_blocking=True)

    def _translate(self, letters: Tensor) -> None:
        """Letters to codes, where they are."""
        table = torch.tensor(list(self._codes), dtype=torch.uint8, device=letters.device)
        for some in letters.split(TRANSLATED):
            torch.index_select(table, 0, some.int(), out=some)

    def _refusal(
        self, names: Sequence[str] | range, texts: list[str] | list[bytes], kind: str
    ) -> InputError:
        """Name the first record with a letter that is unknown."""
        joined = _joined(texts, isinstance(texts[0], str), at_a_time=1)
        codes = (raw.translate(self._codes) for raw in joined)
        places = (code.find(UNKNOWN) for code in codes)
        record, place = next((k, place) for k, place in enumerate(places) if place >= 0)
        letter = texts[record][place : place + 1]
        shown = letter if isinstance(letter, str) else letter.decode("latin-1")
        is_protein = "Q" in self.letters  # where N is asparagine
        stand_in = "X" if is_protein else "N"
        remedy = f"unknown='{stand_in}' to read it as that, or " * (stand_in in self.letters)
        return InputError(
            f"{kind} {names[record]} has {shown!r} at {place + 1}, which is none of "
            f"{self.letters}: give {remedy}a matrix that has it"
        )

    def _of_tensors(self, codes: Tensor, lengths: Any, kind: str) -> Sequences:
        """Codes [n, L] with lengths [n]."""
        lengths = torch.as_tensor(lengths)
        is_integer = not any(x.is_floating_point() or x.is_complex() for x in (codes, lengths))
        if codes.ndim != 2 or lengths.shape != codes.shape[:1] or not is_integer:
            raise InputError(
                f"encoded {kind} letters are integers [n, L] with lengths [n], not "
                f"{list(codes.shape)} and {list(lengths.shape)}"
            )
        n, width = codes.shape
        length = lengths.long().cpu()
        if ((length < 0) | (length > width)).any():
            raise InputError(f"a length of a {kind} is not within 0 to {width}")
        wrong = (codes < 0) | (codes >= len(self.letters))
        wrong &= torch.arange(width, device=codes.device) < lengths.to(codes.device)[:, None]
        if wrong.any():
            record, place = wrong.nonzero()[0].tolist()
            raise InputError(
                f"{kind} {record} has code {int(codes[record, place])} at {place + 1}, but codes "
                f"of {self.letters} are below {len(self.letters)}"
            )
        letters = codes.to(torch.uint8).reshape(-1)
        return Sequences(range(n), letters, torch.arange(n) * width, length)


def _joined(texts: list[Any], is_text: bool, at_a_time: int = AT_A_TIME) -> Iterator[bytes]:
    """Portions of texts that are all str or all bytes, a byte for each letter."""
    for first in range(0, len(texts), at_a_time):
        some = texts[first : first + at_a_time]
        yield "".join(some).encode("ascii", "replace") if is_text else b"".join(some)


def _write(portions: Iterable[bytes], letters: Tensor) -> None:
    """Put them into a tensor on the CPU, one after the other."""
    room, done = letters.numpy().data, 0
    for portion in portions:
        room[done : done + len(portion)] = portion
        done += len(portion)


def _texts(source: Iterable[Any], kind: str) -> tuple[Sequence[str] | range, list[Any]]:
    """Names and texts, the latter all str or all bytes."""
    if hasattr(source, "seq") or hasattr(source, "__bytes__") or isinstance(source, bytes):
        raise InputError(f"a single {kind} is given as a list of one")
    if isinstance(source, Mapping):
        names = list(map(str, source))
        pairs = zip(names, source.values(), strict=True)
        return names, [_bytes(getattr(item, "seq", item), name, kind) for name, item in pairs]
    try:
        items = list(source)
    except TypeError:
        raise InputError(
            f"{type(source).__name__} is nothing to read sequences from: give a list of them, the "
            "path of a FASTA file, or codes with lengths"
        ) from None
    if len(set(map(type, items))) <= 1 and isinstance(next(iter(items), ""), str | bytes):
        return range(len(items)), items
    names = [str(getattr(item, "id", place)) for place, item in enumerate(items)]
    sequences = [getattr(item, "seq", item) for item in items]
    texts = [_bytes(item, name, kind) for item, name in zip(sequences, names, strict=True)]
    return names, texts


def _bytes(sequence: Any, name: str, kind: str) -> bytes:
    if isinstance(sequence, str):
        return sequence.encode("ascii", "replace")  # what is no letter of ASCII is none of a matrix
    if isinstance(sequence, bytes | bytearray) or hasattr(sequence, "__bytes__"):
        return bytes(sequence)
    raise InputError(
        f"{kind} {name} is no sequence, but of type {type(sequence).__name__}: give str, bytes or "
        "records, or codes as (tensor, lengths)"
    )


def read_fasta(path: Path) -> Iterator[Record]:
    """Records of a file, packed by gzip or not, one by one.

    Raises
    ------
    InputError
        If the file cannot be read, is cut off, or holds something else.
    """
    name: str | None = None
    parts: list[bytes] = []
    try:
        with _opened(path) as lines:
            for line in lines:
                if line.startswith(b">"):
                    if name is not None:
                        yield _record(path, name, parts)
                    name, parts = _name(path, line), []
                elif name is not None:
                    parts.append(line)
                elif line.strip(BLANKS):
                    raise InputError(f"{path} is no FASTA file: it does not begin with >")
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        last = "before its first record" if name is None else f"in record {name}"
        raise InputError(f"{path} is damaged or cut off {last}: {problem}") from problem
    except OSError as problem:
        hint = " (give a single sequence as a list of one)" if str(path).isalpha() else ""
        reason = problem.strerror or problem
        raise InputError(f"{path} cannot be read: {reason}{hint}") from problem
    if name is None:
        raise InputError(f"{path} holds no records")
    yield _record(path, name, parts)


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[bytes]]:
    """A file at its first letter, unpacked if it is packed."""
    if path.is_fifo():
        raise InputError(f"{path} is a pipe, which is read only once: save it as a file")
    with path.open("rb") as plain:
        is_packed = plain.read(2) == GZIP
    with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
        if file.read(3) != BOM_UTF8:
            file.seek(0)
        yield file


def _name(path: Path, line: bytes) -> str:
    words = line[1:].split(maxsplit=1)
    if not words:
        raise InputError(f"{path} has a record without a name")
    return words[0].decode("utf-8", "replace")


def _record(path: Path, name: str, lines: list[bytes]) -> Record:
    sequence = b"".join(lines).translate(None, BLANKS)
    if not sequence:
        raise InputError(f"record {name} of {path} has no letters: is the file cut off?")
    return Record(name, sequence)
