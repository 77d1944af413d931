"""Alignment of two FASTA or FASTQ files to SAM or a table: the body of ``mlff-triton align``."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import isqrt, prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.console import Console

from mlff_triton._common.progress import ProgressBar
from mlff_triton._common.version import __version__
from mlff_triton.bio.alignment import align, sam
from mlff_triton.bio.alignment.files import Record, read_records
from mlff_triton.bio.alignment.result import Alignment, Alignments
from mlff_triton.errors import InputError
from mlff_triton.jobs.job import Job, Progress, Task, Workers
from mlff_triton.jobs.job import run as run_job
from mlff_triton.jobs.workers import Done

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
        Largest number of pairs per batch. Long sequences have smaller batches.
    overwrite : bool
        If True, replace an existing output file.
    batch_letters : int
        Largest number of residues or bases that a batch reads, or that the queries of its pairs
        have. They limit the memory of a batch, which has at least one pair.
    """

    queries: Path
    targets: Path
    out: Path
    pairs: str
    batch: int
    overwrite: bool = False
    batch_letters: int = 2**26


@dataclass(frozen=True)
class Aligning:
    """The computation of the command.

    Attributes
    ----------
    options : tuple of (str, object)
        Keyword arguments of `align`, without the device.
    is_sam : bool
        True for SAM, which needs a traceback; False for a table.
    """

    options: tuple[tuple[str, Any], ...]
    is_sam: bool

    def start(self, device: str) -> Callable[[Batch], Done]:
        """Return the function that aligns a batch on a device."""
        align_pairs = self.aligner(device)

        def compute(batch: Batch) -> Done:
            alignments = align_pairs(batch.queries, batch.targets)
            if self.is_sam:
                lines = alignments.sam_records(has_primary=not batch.is_first)
            else:
                lines = _table(alignments)
            return Done("".join(lines).encode(), len(alignments))

        return compute

    def aligner(self, device: str) -> Align:
        """Return the function from lists of queries and targets to their alignments."""
        return partial(align, **dict(self.options), device=device)


def run(
    request: Request,
    work: Aligning,
    workers: Workers,
    console: Console,
    stop: Callable[[], bool],
) -> Progress:
    """Align two files, or continue. The output file appears when it is complete.

    The input files are read once in advance, so that a truncated file or a missing partner is
    reported immediately.

    Parameters
    ----------
    request : Request
        Arguments of the command.
    work : Aligning
        Computation of a batch.
    workers : Workers
        Workers that share the batches.
    console : Console
        Console for progress.
    stop : callable
        Function that returns True to stop after the current batch. The same call continues.

    Returns
    -------
    Progress
        Its position counts the cells of the alignment tables of all pairs.

    Raises
    ------
    InputError
        If a file cannot be read or aligned.
    BackendError
        If the workers cannot be used.
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
    settings: dict[str, str | int] = {
        "job": "align",
        "version": __version__,
        "batch": request.batch,
        **{name: str(value) for name, value in work.options},
    }
    head = "".join(targets.header()) if work.is_sam else _row(_fields(work))
    job = Job(partial(_tasks, request), work, request.out, settings, head.encode())
    with _Bar(console, total) as bar:
        return run_job(job, workers, overwrite=request.overwrite, show=bar.advance, stop=stop)


def check(request: Request) -> None:
    """Raise if an argument is invalid."""
    if request.pairs not in ("zip", "all"):
        raise InputError(f"--pairs {request.pairs} is unknown: use zip or all")
    if request.batch < 1:
        raise InputError(f"--batch {request.batch} is not valid: use at least 1 pair")
    if request.out.suffix.lower() not in FORMATS:
        raise InputError(f"the suffix of {request.out} is unknown: use {' or '.join(FORMATS)}")


class Batch(NamedTuple):
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

    def check(self) -> int:
        """Return the CRC-32 of all records."""
        found = 0
        for record in chain(self.queries, self.targets):
            found = zlib.crc32(f"{record.id}\n".encode() + record.seq, found)
        return found


def _tasks(request: Request) -> Iterator[Task]:
    """Yield the batches as tasks, whose positions count cells."""
    cells = 0
    for batch in _batches(request):
        cells += batch.cells(request.pairs)
        name = f"query {batch.queries[0].id}, target {batch.targets[0].id}"
        yield Task(batch, batch.check(), cells, name)


def _batches(request: Request) -> Iterator[Batch]:
    """Yield batches that together hold every pair once."""
    most = request.batch_letters
    queries, targets = (partial(read_records, path) for path in (request.queries, request.targets))
    if request.pairs == "zip":
        for pairs in _chunks(zip(queries(), targets(), strict=True), request.batch, most):
            some, others = (list(column) for column in zip(*pairs, strict=True))
            yield Batch(some, others, True)
        return
    for rows in _chunks(((query,) for query in queries()), isqrt(request.batch), most):
        some = [query for (query,) in rows]
        size = min(request.batch // len(some), most // _letters(some))
        for index, columns in enumerate(_chunks(((target,) for target in targets()), size, most)):
            yield Batch(some, [target for (target,) in columns], index == 0)


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


def _fields(work: Aligning) -> tuple[str, ...]:
    """Return the names of the columns of a table: three without a traceback, else all."""
    return Alignment._fields if dict(work.options).get("traceback") else Alignment._fields[:3]


def _table(alignments: Alignments) -> Iterator[str]:
    """Yield the lines of a TSV with the fields of `Alignment` that were computed."""
    n = None if alignments.has_traceback else 3
    return (_row(alignment[:n]) for alignment in alignments)


def _row(values: Iterable[object]) -> str:
    return "\t".join(map(_cell, values)) + "\n"


def _cell(value: object) -> str:
    """Format one field."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class _Bar(ProgressBar):
    """Progress bar that shows pairs and billions of cell updates per second (GCUPS)."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, "aligning", total)
        self._total = total

    def advance(self, progress: Progress) -> None:
        """Show the pairs that were written."""
        if progress.items == 0:
            return
        speed = f"{gcups(progress):.3g} GCUPS"
        line = f"{progress.items} of {self._total} pairs, {speed}"
        self.show(progress.items, f"pairs {speed}", line)


def gcups(progress: Progress) -> float:
    """Return billions of cells per second, including the time for reading and writing."""
    return (progress.position - progress.start) / max(progress.seconds, 1e-9) / 1e9
