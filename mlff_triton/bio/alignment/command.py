"""Two FASTA files to SAM or a table, in batches: the body of ``mlff-triton align``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from math import isqrt, prod
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.console import Console

from mlff_triton._common.files import replacing
from mlff_triton._common.progress import ProgressBar
from mlff_triton.bio.alignment import sam
from mlff_triton.bio.alignment.result import Alignment, Alignments
from mlff_triton.bio.alignment.sequences import Record, read_fasta
from mlff_triton.errors import InputError, OutputError

FORMATS = (".sam", ".tsv")
LETTERS = 2**26  # that a batch reads, or that its pairs have of queries: they bound its memory

Row = TypeVar("Row", bound=tuple[Record, ...])
Align = Callable[[list[Record], list[Record]], Alignments]


class Request(NamedTuple):
    """What the user asks for.

    Attributes
    ----------
    queries, targets : Path
        FASTA files.
    out : Path
        SAM or TSV, by its suffix; an existing file is replaced only with `overwrite`.
    pairs : {"zip", "all"}
        Which queries and targets make a pair.
    batch : int
        Pairs at a time, at most: long sequences come in smaller batches.
    overwrite : bool
        Whether an existing file may be replaced.
    """

    queries: Path
    targets: Path
    out: Path
    pairs: str
    batch: int
    overwrite: bool = False


class Counts(NamedTuple):
    """How much was done."""

    pairs: int
    total: int
    cells: int
    seconds: float

    @property
    def gcups(self) -> float:
        """Billions of cells a second, reading and writing included."""
        return self.cells / max(self.seconds, 1e-9) / 1e9


def run(request: Request, align: Align, console: Console, stop: Callable[[], bool]) -> Counts:
    """Align two files; the result appears when it is whole.

    Files are read once before, so that what is cut off or has no partner is refused at once.

    Parameters
    ----------
    request : Request
        What to do.
    align : callable
        From lists of queries and targets to their alignments, with a traceback for SAM.
    console : Console
        For progress.
    stop : callable
        Whether to stop after this batch: then the file has whole records of the pairs before.

    Returns
    -------
    Counts

    Raises
    ------
    InputError
        If a file cannot be read or aligned.
    OutputError
        If the result cannot be written.
    """
    check(request)
    n_queries = sum(1 for _ in read_fasta(request.queries))
    sizes = [(record.id, len(record.seq)) for record in read_fasta(request.targets)]
    total = n_queries if request.pairs == "zip" else n_queries * len(sizes)
    if request.pairs == "zip" and n_queries != len(sizes):
        raise InputError(
            f"{request.queries} has {n_queries} records and {request.targets} {len(sizes)}: use "
            "--pairs all to align each with each"
        )
    is_sam = request.out.suffix.lower() == ".sam"
    head = sam.header(sizes) if is_sam else None
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
    """Refuse at once what cannot be done."""
    if request.pairs not in ("zip", "all"):
        raise InputError(f"--pairs {request.pairs} is unknown: use zip or all")
    if request.batch < 1:
        raise InputError(f"--batch {request.batch} is no number of pairs")
    if request.out.suffix.lower() not in FORMATS:
        raise InputError(f"{request.out} is neither {' nor '.join(FORMATS)}")
    if request.out.exists() and not request.overwrite:
        raise OutputError(f"{request.out} exists: give another name, or --overwrite")


class _Batch(NamedTuple):
    """Records to align at once; `is_first` of those that have these queries."""

    queries: list[Record]
    targets: list[Record]
    is_first: bool

    def cells(self, pairs: str) -> int:
        """Letters of queries times letters of targets, of all pairs."""
        lengths = [[len(record.seq) for record in records] for records in self[:2]]
        if pairs == "all":
            return prod(map(sum, lengths))
        return sum(map(prod, zip(*lengths, strict=True)))


def _batches(request: Request) -> Iterator[_Batch]:
    queries, targets = (partial(read_fasta, path) for path in (request.queries, request.targets))
    if request.pairs == "zip":
        for pairs in _chunks(zip(queries(), targets(), strict=True), request.batch):
            some, others = (list(column) for column in zip(*pairs, strict=True))
            yield _Batch(some, others, True)
        return
    for rows in _chunks(((query,) for query in queries()), isqrt(request.batch)):
        some = [query for (query,) in rows]
        size = min(request.batch // len(some), LETTERS // _letters(some))
        for place, columns in enumerate(_chunks(((target,) for target in targets()), size)):
            yield _Batch(some, [target for (target,) in columns], place == 0)


def _chunks(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Up to so many rows with no more than `LETTERS`, or one row."""
    chunk: list[Row] = []
    total = 0
    for row in rows:
        letters = _letters(row)
        if chunk and (len(chunk) >= size or total + letters > LETTERS):
            yield chunk
            chunk, total = [], 0
        chunk.append(row)
        total += letters
    if chunk:
        yield chunk


def _letters(records: Iterable[Record]) -> int:
    return sum(len(record.seq) for record in records)


def _table(alignments: Alignments, *, with_head: bool) -> Iterator[str]:
    """Lines of a TSV with the fields of `Alignment`; those of a traceback if there is one."""
    rows: Iterable[tuple[object, ...]] = alignments
    n = None if alignments.has_traceback else 3
    if with_head:
        rows = chain([Alignment._fields], rows)
    return ("\t".join(map(_cell, row[:n])) + "\n" for row in rows)


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class _Progress(ProgressBar):
    """Pairs and GCUPS."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, "aligning", total)
        self._began = time.monotonic()
        self.counts = Counts(0, total, 0, 0.0)

    def advance(self, pairs: int, cells: int) -> None:
        """So many pairs more are written."""
        done, seconds = self.counts, time.monotonic() - self._began
        self.counts = Counts(done.pairs + pairs, done.total, done.cells + cells, seconds)
        speed = f"{self.counts.gcups:.3g} GCUPS"
        line = f"{self.counts.pairs} of {done.total} pairs, {speed}"
        self.show(self.counts.pairs, f"pairs {speed}", line)
