"""The command ``mlff-triton embed``: embeddings of proteins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlff_triton.cli._jobs import ManyDevicesOption, SchedulerOption, WorkersOption, run_job
from mlff_triton.cli._shared import OverwriteOption


def embed(
    fasta: Annotated[Path, typer.Argument(help="FASTA file of proteins, plain or gzipped.")],
    model: Annotated[
        str, typer.Option(help="Encoder of transformers: a folder, or a name on the hub.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: HDF5 (.h5) or Parquet (.parquet).")],
    per_residue: Annotated[
        bool, typer.Option("--per-residue", help="Write every residue instead of their mean.")
    ] = False,
    precision: Annotated[
        str | None,
        typer.Option(help="fp16, bf16 or fp32, on a GPU.", show_default="that of the model"),
    ] = None,
    device: ManyDevicesOption = "auto",
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Compute embeddings of proteins by a model of Hugging Face's transformers.

    Results have the order of the input. A sequence that is too long has an
    error instead, and the exit code is 1.

    After Ctrl-C, or any other end, the same command continues.
    """
    from mlff_triton.bio.embedding import embed_files

    run_job(
        "sequences",
        out,
        fasta.stat().st_size if fasta.is_file() else 0,
        lambda show, stop: embed_files(
            fasta,
            out,
            model=model,
            per_residue=per_residue,
            precision=precision,
            device=device,
            workers=workers,
            scheduler=scheduler,
            overwrite=overwrite,
            show=show,
            stop=stop,
        ),
    )
