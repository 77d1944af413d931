"""Sequences as codes, read from strings, records, files and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton._common.text import printable, shortened
from mlff_triton.bio.alignment.files import read_records
from mlff_triton.bio.alignment.scoring import is_nucleic, is_protein
from mlff_triton.errors import InputError

JOINED_AT_A_TIME = 256  # sequences, few enough to stay in the cache
UPLOAD_BATCH = 2**11  # sequences copied to a GPU while the host joins the next ones
ENCODING_BATCH = 2**24  # symbols that a GPU encodes at once, with four more bytes for each
UNKNOWN = 255  # code of a symbol missing from the matrix
RESIDUES_ONLY = "EFILPQ"  # amino acids whose symbols stand for no base and no set of bases


NONE = torch.empty(0, dtype=torch.uint8, device="cpu")


class Sequences(NamedTuple):
    """Sequences as codes, in ascending order in memory, with or without gaps between them.

    Attributes
    ----------
    names : sequence of str, or range
        Names of records, or indices of sequences without names.
    letters : uint8 [S]
        Codes of all residues or bases, on any device.
    start, length : int64 [n]
        A sequence is ``letters[start : start + length]``. On the CPU.
    given : uint8 [S] or [0]
        ASCII codes, in upper case, of symbols that another one replaces, and zero where none was
        replaced; empty if none was anywhere.
    """

    names: Sequence[str] | range
    letters: Tensor
    start: Tensor
    length: Tensor
    given: Tensor = NONE

    def part(self, first: int, last: int) -> Sequences:
        """Return the sequences ``first : last``, with only their own codes."""
        if last - first == len(self.names):
            return self
        begin = int(self.start[first])
        end = int(self.start[last - 1] + self.length[last - 1])
        return Sequences(
            self.names[first:last],
            self.letters[begin:end],
            self.start[first:last] - begin,
            self.length[first:last],
            self.given[begin:end],
        )


class Alphabet:
    """Residues or bases and their codes, which are their rows in a substitution matrix.

    Upper and lower case are equivalent. In an alphabet of bases, U is T.

    Parameters
    ----------
    letters : str
        Residues or bases in the order of the matrix, in upper case.
    unknown : str, optional
        One of `letters` whose code all other symbols get. By default, other symbols raise an error.
        In an alphabet of bases, symbols that occur only in proteins always raise an error.
    device : torch.device, optional
        Device that encodes text and keeps the codes. By default, the host does.
    upload_batch : int
        Sequences copied to the device at a time.
    encoding_batch : int
        Symbols that the device encodes at a time.
    """

    def __init__(
        self,
        letters: str,
        unknown: str | None = None,
        *,
        device: torch.device | None = None,
        upload_batch: int = UPLOAD_BATCH,
        encoding_batch: int = ENCODING_BATCH,
    ) -> None:
        if not letters.isascii():
            raise InputError(f"the row names {letters} of the matrix are not ASCII: rename them")
        self.letters, self._device = letters, device
        self._is_nucleic = is_nucleic(letters)
        self._upload_batch, self._encoding_batch = upload_batch, encoding_batch
        codes = bytearray([UNKNOWN]) * 256
        self._stand_in = UNKNOWN
        if unknown is not None:
            if not isinstance(unknown, str) or len(unknown) != 1 or unknown.upper() not in letters:
                raise InputError(f"unknown={unknown!r} is not one of {letters}: choose one of them")
            self._stand_in = letters.index(unknown.upper())
            codes = _codes_of_others(letters)
        known = {letter: code for code, letter in enumerate(letters)}
        if self._is_nucleic:
            known = dict.fromkeys(RESIDUES_ONLY, UNKNOWN) | {"U": known["T"]} | known
        for letter, code in known.items():
            codes[ord(letter)] = codes[ord(letter.lower())] = code
        self._codes = bytes(codes)
        self._letters = letters.encode().ljust(256, b"?")
        self._any_base = letters.find("N") if self._is_nucleic else -1

    def read(self, source: Any, kind: str) -> Sequences:
        """Encode sequences in any of the forms that `align` accepts.

        Parameters
        ----------
        source : path, iterable of str, bytes or records, or (tensor, lengths)
            Sequences.
        kind : str
            "query" or "target", for messages.

        Raises
        ------
        InputError
            If there are no sequences, or one of them cannot be read. The message names it.
        """
        if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], Tensor):
            found = self._of_tensors(*source, kind)
        elif isinstance(source, str | PathLike):
            records = list(read_records(Path(source)))
            names, texts = [record.id for record in records], [record.seq for record in records]
            found = self._of_texts(names, texts, kind)
        else:
            found = self._of_items(source, kind)
        if len(found.names) == 0:
            raise InputError(f"there is no {kind}: give at least one")
        return found

    def is_ambiguous(self, sequences: Sequences) -> bool:
        """Return True if equal codes may be different symbols, or stand for any base."""
        if len(sequences.given):
            return True
        return self._any_base >= 0 and bool((sequences.letters == self._any_base).any())

    def symbols(self, sequences: Sequences) -> Tensor:
        """Return the symbols that were given, as ASCII codes, uint8 [S].

        Symbols that never match are 0: N for any base, and characters other than letters.
        """
        table = torch.tensor(
            list(self._letters), dtype=torch.uint8, device=sequences.letters.device
        )
        if self._any_base >= 0:
            table[self._any_base] = 0
        symbols = table[sequences.letters.int()]
        given = sequences.given
        if not len(given):
            return symbols
        is_letter = (given >= ord("A")) & (given <= ord("Z"))
        return torch.where(given == 0, symbols, given * is_letter)

    def decode(self, sequences: Sequences) -> list[str]:
        """Return sequences as text, with the letters that were given."""
        letters = sequences.letters.cpu().numpy().tobytes().translate(self._letters)
        if len(sequences.given):
            given = sequences.given.cpu().numpy()
            is_letter = (given >= ord("A")) & (given <= ord("Z"))
            letters = np.where(is_letter, given, np.frombuffer(letters, np.uint8)).tobytes()
        text = letters.decode("ascii")
        ranges = zip(sequences.start.tolist(), sequences.length.tolist(), strict=True)
        return [text[first : first + length] for first, length in ranges]

    def _of_items(self, source: Iterable[Any], kind: str) -> Sequences:
        """Encode an iterable. A list that starts with a str is first assumed to hold only str."""
        if isinstance(source, list) and source and isinstance(source[0], str):
            with suppress(TypeError):
                return self._of_texts(range(len(source)), source, kind)
        return self._of_texts(*_texts(source, kind), kind)

    def _of_texts(
        self, names: Sequence[str] | range, texts: list[str] | list[bytes], kind: str
    ) -> Sequences:
        """Encode texts. Only if one has an unknown symbol, search for it."""
        size = self._upload_batch
        is_text = isinstance(next(iter(texts), ""), str)
        batches = range(0, max(1, len(texts)), size)
        encoded = [self._encode(texts[k : k + size], is_text) for k in batches]
        length, letters = map(torch.cat, zip(*encoded, strict=True))
        if self._device is not None:
            self._translate(letters)
        most = int(letters.max()) if len(letters) else 0
        if most == UNKNOWN:
            raise self._refusal(names, texts, kind)
        given = NONE
        if most >= len(self.letters):
            given = _given(self._codes, len(self.letters), letters)
            letters = letters.masked_fill(given > 0, self._stand_in)
        return Sequences(names, letters, length.cumsum(0) - length, length, given)

    def _encode(self, texts: list[str] | list[bytes], is_text: bool) -> tuple[Tensor, Tensor]:
        """Return the lengths of texts and their codes, or their bytes if a device encodes them."""
        length = torch.from_numpy(np.fromiter(map(len, texts), np.int64, len(texts)))
        is_pinned = self._device is not None and self._device.type == "cuda"
        letters = torch.empty(int(length.sum()), dtype=torch.uint8, pin_memory=is_pinned)
        if self._device is None:
            _write((raw.translate(self._codes) for raw in _joined(texts, is_text)), letters)
            return length, letters
        _write(_joined(texts, is_text), letters)
        return length, letters.to(self._device, non_blocking=True)

    def _translate(self, letters: Tensor) -> None:
        """Replace bytes by codes in place, on their own device."""
        table = torch.tensor(list(self._codes), dtype=torch.uint8, device=letters.device)
        for part in letters.split(self._encoding_batch):
            torch.index_select(table, 0, part.int(), out=part)

    def _refusal(
        self, names: Sequence[str] | range, texts: list[str] | list[bytes], kind: str
    ) -> InputError:
        """Return the error that names the first sequence with an unknown symbol."""
        joined = _joined(texts, isinstance(texts[0], str), size=1)
        codes = (raw.translate(self._codes) for raw in joined)
        positions = (code.find(UNKNOWN) for code in codes)
        record, position = next((k, found) for k, found in enumerate(positions) if found >= 0)
        symbol = texts[record][position : position + 1]
        shown = symbol if isinstance(symbol, str) else symbol.decode("latin-1")
        found = f"{kind} {shortened(names[record])} has {shown!r} at position {position + 1}"
        text = texts[record].upper()
        residues = RESIDUES_ONLY if isinstance(text, str) else RESIDUES_ONLY.encode()
        if self._is_nucleic and not set(residues).isdisjoint(text):
            return InputError(
                f"{found} and seems to be a protein: align proteins with a matrix of theirs, "
                "matrix='BLOSUM62' (--matrix BLOSUM62)"
            )
        stand_in = "X" if is_protein(self.letters) else "N"
        remedy = f"unknown='{stand_in}' to read it as that, or " * (stand_in in self.letters)
        return InputError(
            f"{found}, which is not one of {self.letters}: give {remedy}a matrix that includes it"
        )

    def _of_tensors(self, codes: Tensor, lengths: Any, kind: str) -> Sequences:
        """Check codes [n, L] with lengths [n]."""
        lengths = torch.as_tensor(lengths)
        is_integer = not any(x.is_floating_point() or x.is_complex() for x in (codes, lengths))
        if codes.ndim != 2 or lengths.shape != codes.shape[:1] or not is_integer:
            raise InputError(
                f"encoded {kind} sequences must be integers [n, L] with lengths [n], not "
                f"{codes.dtype} {list(codes.shape)} and {lengths.dtype} {list(lengths.shape)}"
            )
        n, width = codes.shape
        length = lengths.long().cpu()
        if ((length < 0) | (length > width)).any():
            raise InputError(f"lengths of encoded {kind} sequences must be from 0 to {width}")
        wrong = (codes < 0) | (codes >= len(self.letters))
        wrong &= torch.arange(width, device=codes.device) < lengths.to(codes.device)[:, None]
        if wrong.any():
            record, position = wrong.nonzero()[0].tolist()
            raise InputError(
                f"{kind} {record} has code {int(codes[record, position])} at position "
                f"{position + 1}, but codes of {self.letters} must be from 0 to "
                f"{len(self.letters) - 1}"
            )
        letters = codes.to(torch.uint8).reshape(-1)
        return Sequences(range(n), letters, torch.arange(n) * width, length)


def _codes_of_others(letters: str) -> bytearray:
    """Return codes that follow those of the letters, one for each byte; both cases have one."""
    codes = bytearray(256)
    distinct = sorted({bytes([byte]).upper()[0] for byte in range(256)} - {*letters.encode()})
    for code, byte in enumerate(distinct, len(letters)):
        for each in bytes([byte]) + bytes([byte]).lower():
            codes[each] = code
    return codes


def _given(codes: bytes, n_letters: int, letters: Tensor) -> Tensor:
    """Return the bytes of codes that follow those of the letters, in upper case, and zero."""
    bytes_of = torch.zeros(256, dtype=torch.uint8, device="cpu")
    for byte in reversed(range(1, 256)):  # upper case, which comes before lower case, is the last
        if n_letters <= codes[byte] < UNKNOWN:
            bytes_of[codes[byte]] = byte
    return bytes_of.to(letters.device)[letters.int()]


def _joined(texts: list[Any], is_text: bool, size: int = JOINED_AT_A_TIME) -> Iterator[bytes]:
    """Yield batches of texts joined to bytes. The texts are all str or all bytes."""
    for first in range(0, len(texts), size):
        batch = texts[first : first + size]
        yield "".join(batch).encode("ascii", "replace") if is_text else b"".join(batch)


def _write(portions: Iterable[bytes], letters: Tensor) -> None:
    """Copy portions into a tensor on the CPU, one after another."""
    buffer, done = letters.numpy().data, 0
    for portion in portions:
        buffer[done : done + len(portion)] = portion
        done += len(portion)


def _texts(source: Iterable[Any], kind: str) -> tuple[Sequence[str] | range, list[Any]]:
    """Return names and texts. The texts are either all str or all bytes."""
    if hasattr(source, "seq") or hasattr(source, "__bytes__") or isinstance(source, bytes):
        raise InputError(f"the {kind} sequences must be a list: put a single {kind} into a list")
    if isinstance(source, Mapping):
        names = list(map(printable, source))
        pairs = zip(names, source.values(), strict=True)
        return names, [_bytes(getattr(item, "seq", item), name, kind) for name, item in pairs]
    try:
        items = list(source)
    except TypeError:
        raise InputError(
            f"cannot read sequences from an object of type {type(source).__name__}: give a list of "
            "sequences, the path of a FASTA or FASTQ file, or codes with lengths"
        ) from None
    if len(set(map(type, items))) <= 1 and isinstance(next(iter(items), ""), str | bytes):
        return range(len(items)), items
    names = [printable(getattr(item, "id", index)) for index, item in enumerate(items)]
    sequences = [getattr(item, "seq", item) for item in items]
    texts = [_bytes(item, name, kind) for item, name in zip(sequences, names, strict=True)]
    return names, texts


def _bytes(sequence: Any, name: str, kind: str) -> bytes:
    """Convert a sequence to bytes, or raise an error that names it."""
    if isinstance(sequence, str):
        return sequence.encode("ascii", "replace")  # matrices have no symbols beyond ASCII
    if isinstance(sequence, bytes | bytearray) or hasattr(sequence, "__bytes__"):
        return bytes(sequence)
    raise InputError(
        f"{kind} {name} is not a sequence but of type {type(sequence).__name__}: give str, bytes "
        "or records, or codes as (tensor, lengths)"
    )
