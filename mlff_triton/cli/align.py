"""The command ``mlff-triton align``: two FASTA or FASTQ files to SAM or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlff_triton.cli._exits import EXIT_INTERRUPTED, complain
from mlff_triton.cli._jobs import ManyDevicesOption, SchedulerOption, WorkersOption
from mlff_triton.cli._shared import OverwriteOption, plain_console


def align(
    queries: Annotated[Path, typer.Argument(help="FASTA or FASTQ file, plain or gzipped.")],
    targets: Annotated[Path, typer.Argument(help="FASTA or FASTQ file to align the queries to.")],
    out: Annotated[
        Path, typer.Option(help="File to write: alignments as .sam, or a table of scores as .tsv.")
    ],
    pairs: Annotated[
        str,
        typer.Option(help="zip: the k-th query with the k-th target; all: each with every target."),
    ] = "zip",
    mode: Annotated[
        str,
        typer.Option(help="global, local, semiglobal, or the free ends: target_begin,target_end."),
    ] = "global",
    matrix: Annotated[
        str | None, typer.Option(help="Name of a substitution matrix, such as BLOSUM62.")
    ] = None,
    match: Annotated[int, typer.Option(help="Score of two equal bases.")] = 2,
    mismatch: Annotated[int, typer.Option(help="Score of two different bases.")] = -3,
    gap_open: Annotated[
        int | None,
        typer.Option(
            help="Penalty for the first residue of a gap.",
            show_default="11 with a matrix of proteins, else 5",
        ),
    ] = None,
    gap_extend: Annotated[
        int | None,
        typer.Option(
            help="Penalty for each further residue of a gap.",
            show_default="1 with a matrix of proteins, else 2",
        ),
    ] = None,
    band: Annotated[
        int | None, typer.Option(help="Largest distance from the diagonal, in residues.")
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(help="Residue that replaces unknown ones, such as N or X.")
    ] = None,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Add ends, identity and CIGAR to the .tsv.")
    ] = False,
    batch: Annotated[
        int, typer.Option(help="Pairs per batch; long sequences come in smaller batches.")
    ] = 16384,
    device: ManyDevicesOption = "auto",
    backend: Annotated[str, typer.Option(help="auto, triton, parasail or torch.")] = "auto",
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Align the sequences of two FASTA or FASTQ files.

    Proteins need a matrix, such as --matrix BLOSUM62.

    After Ctrl-C, or any other end, the same command continues.
    """
    from mlff_triton._common.interrupt import StopRequest
    from mlff_triton.bio.alignment.command import Aligning, Request, gcups, run
    from mlff_triton.jobs.job import Workers

    is_sam = out.suffix.lower() == ".sam"
    options = {
        "mode": tuple(end.strip() for end in mode.split(",")) if "," in mode else mode,
        "matrix": matrix,
        "match": match,
        "mismatch": mismatch,
        "gap_open": gap_open,
        "gap_extend": gap_extend,
        "pairs": pairs,
        "band": band,
        "traceback": traceback or is_sam,
        "unknown": unknown,
        "backend": backend,
    }
    if device == "auto" and backend == "parasail":
        device = "cpu"
    request = Request(queries, targets, out, pairs, batch, overwrite)
    work = Aligning(tuple(options.items()), is_sam)
    console = plain_console()
    with StopRequest() as stop:
        progress = run(request, work, Workers(device, workers, scheduler), console, stop)
    if not progress.is_complete:
        complain(f"stopped after {progress.items} pairs: the same command continues")
        raise typer.Exit(EXIT_INTERRUPTED)
    console.print(f"wrote {out}: {progress.items} pairs, {gcups(progress):.3g} GCUPS")
