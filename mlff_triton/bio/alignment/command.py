"""Alignment of two FASTA or FASTQ files to SAM or a table: the body of ``mlff-triton align``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from math import isqrt, prod
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.console import Console

from mlff_triton._common.files import check_new, replacing
from mlff_triton._common.progress import ProgressBar
from mlff_triton.bio.alignment import sam
from mlff_triton.bio.alignment.files import Record, read_records
from mlff_triton.bio.alignment.result import Alignment, Alignments
from mlff_triton.errors import InputError

FORMATS = (".sam", ".tsv")

Row = TypeVar("Row", bound=tuple[Record, ...])
Align = Callable[[list[Record], list[Record]], Alignments]


class Request(NamedTuple):
    """Arguments of the command.

    Attributes
    ----------
    queries, targets : Path
        FASTA or FASTQ files.
    out : Path
        Output file; its suffix selects SAM or TSV.
    pairs : {"zip", "all"}
        Pairing of queries and targets.
    batch : int
        Most pairs per batch. Long sequences have smaller batches.
    overwrite : bool
        If True, replace an existing output file.
    batch_letters : int
        Most residues or bases that a batch reads, or that the queries of its pairs have. They
        limit the memory of a batch, which has at least one pair.
    """

    queries: Path
    targets: Path
    out: Path
    pairs: str
    batch: int
    overwrite: bool = False
    batch_letters: int = 2**26


class Counts(NamedTuple):
    """Amount of work done.

    Attributes
    ----------
    pairs, total : int
        Pairs written, and pairs in all.
    cells : int
        Cells of the alignment tables of the pairs written.
    seconds : float
        Elapsed time, in seconds.
    """

    pairs: int
    total: int
    cells: int
    seconds: float

    @property
    def gcups(self) -> float:
        """Billions of cells per second, including the time for reading and writing."""
        return self.cells / max(self.seconds, 1e-9) / 1e9


def run(request: Request, align: Align, console: Console, stop: Callable[[], bool]) -> Counts:
    """Align two files. The output file appears when it is complete.

    The input files are read once in advance, so that a truncated file or a missing partner is
    reported immediately.

    Parameters
    ----------
    request : Request
        Arguments of the command.
    align : callable
        Function from lists of queries and targets to their alignments, with a traceback for SAM.
    console : Console
        Console for progress.
    stop : callable
        Function that returns True to stop after the current batch. The file then has complete
        records of all pairs up to there.

    Returns
    -------
    Counts

    Raises
    ------
    InputError
        If a file cannot be read or aligned.
    OutputError
        If the output file cannot be written.
    """
    check(request)
    n_queries = sum(1 for _ in read_records(request.queries))
    targets = sam.Targets()
    for record in read_records(request.targets):
        targets.add(record.id, record.seq)
    total = n_queries if request.pairs == "zip" else n_queries * targets.count
    if request.pairs == "zip" and n_queries != targets.count:
        raise InputError(
            f"{request.queries} has {n_queries} records and {request.targets} {targets.count}: use "
            "--pairs all to align every query with every target"
        )
    is_sam = request.out.suffix.lower() == ".sam"
    head = targets.header() if is_sam else None
    with replacing(request.out) as file, _Progress(console, total) as progress:
        if head is not None:
            file.writelines(line.encode() for line in head)
        for batch in _batches(request):
            alignments = align(batch.queries, batch.targets)
            if is_sam:
                lines = sam.records(alignments, has_primary=not batch.is_first)
            else:
                lines = _table(alignments, with_head=progress.counts.pairs == 0)
            file.write("".join(lines).encode())
            progress.advance(len(alignments), batch.cells(request.pairs))
            if stop():
                break
    return progress.counts


def check(request: Request) -> None:
    """Raise if an argument is invalid or the output file exists."""
    if request.pairs not in ("zip", "all"):
        raise InputError(f"--pairs {request.pairs} is unknown: use zip or all")
    if request.batch < 1:
        raise InputError(f"--batch {request.batch} is not valid: use at least 1 pair")
    if request.out.suffix.lower() not in FORMATS:
        raise InputError(f"the suffix of {request.out} is unknown: use {' or '.join(FORMATS)}")
    check_new(request.out, request.overwrite)


class _Batch(NamedTuple):
    """Records to align at once. `is_first` is True for the first batch with these queries."""

    queries: list[Record]
    targets: list[Record]
    is_first: bool

    def cells(self, pairs: str) -> int:
        """Return the number of cells in the alignment tables of all pairs."""
        lengths = [[len(record.seq) for record in records] for records in self[:2]]
        if pairs == "all":
            return prod(map(sum, lengths))
        return sum(map(prod, zip(*lengths, strict=True)))


def _batches(request: Request) -> Iterator[_Batch]:
    """Yield batches that together hold every pair once."""
    most = request.batch_letters
    queries, targets = (partial(read_records, path) for path in (request.queries, request.targets))
    if request.pairs == "zip":
        for pairs in _chunks(zip(queries(), targets(), strict=True), request.batch, most):
            some, others = (list(column) for column in zip(*pairs, strict=True))
            yield _Batch(some, others, True)
        return
    for rows in _chunks(((query,) for query in queries()), isqrt(request.batch), most):
        some = [query for (query,) in rows]
        size = min(request.batch // len(some), most // _letters(some))
        for index, columns in enumerate(_chunks(((target,) for target in targets()), size, most)):
            yield _Batch(some, [target for (target,) in columns], index == 0)


def _chunks(rows: Iterable[Row], size: int, most: int) -> Iterator[list[Row]]:
    """Yield chunks of up to `size` rows and `most` residues or bases, but at least one row."""
    chunk: list[Row] = []
    total = 0
    for row in rows:
        letters = _letters(row)
        if chunk and (len(chunk) >= size or total + letters > most):
            yield chunk
            chunk, total = [], 0
        chunk.append(row)
        total += letters
    if chunk:
        yield chunk


def _letters(records: Iterable[Record]) -> int:
    """Count the residues or bases of records."""
    return sum(len(record.seq) for record in records)


def _table(alignments: Alignments, *, with_head: bool) -> Iterator[str]:
    """Yield the lines of a TSV with the fields of `Alignment` that were computed."""
    rows: Iterable[tuple[object, ...]] = alignments
    n = None if alignments.has_traceback else 3
    if with_head:
        rows = chain([Alignment._fields], rows)
    return ("\t".join(map(_cell, row[:n])) + "\n" for row in rows)


def _cell(value: object) -> str:
    """Format one field."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class _Progress(ProgressBar):
    """Progress bar that shows pairs and billions of cell updates per second (GCUPS)."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, "aligning", total)
        self._began = time.monotonic()
        self.counts = Counts(0, total, 0, 0.0)

    def advance(self, pairs: int, cells: int) -> None:
        """Count pairs that were written, and their cells."""
        done, seconds = self.counts, time.monotonic() - self._began
        self.counts = Counts(done.pairs + pairs, done.total, done.cells + cells, seconds)
        speed = f"{self.counts.gcups:.3g} GCUPS"
        line = f"{self.counts.pairs} of {done.total} pairs, {speed}"
        self.show(self.counts.pairs, f"pairs {speed}", line)
