"""The command ``mlff-triton dock``: docking of ligands to a receptor by DiffDock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlff_triton.cli._jobs import ManyDevicesOption, SchedulerOption, WorkersOption, run_job
from mlff_triton.cli._shared import OverwriteOption


def dock(
    receptor: Annotated[Path, typer.Argument(help="PDB file of the receptor.")],
    ligands: Annotated[Path, typer.Argument(help="SDF file of the ligands, plain or gzipped.")],
    model: Annotated[
        Path,
        typer.Option(
            help="Folder of a DiffDock score model, or one with score_model and confidence_model."
        ),
    ],
    out: Annotated[Path, typer.Option(help="SDF file to write.")] = Path("poses.sdf"),
    confidence: Annotated[
        Path | None, typer.Option(help="Folder of a confidence model, which ranks poses.")
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(
            help="Folder of DiffDock's code.", show_default="the environment variable DIFFDOCK"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings of DiffDock's inference.py.",
            show_default="default_inference_args.yaml of the code",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="Poses of each ligand.")] = 10,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of the diffusion.", show_default="those of the settings, or 20"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random numbers.")] = 0,
    batch: Annotated[int, typer.Option(help="Ligands in a batch.")] = 32,
    device: ManyDevicesOption = "auto",
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Dock ligands to a receptor by DiffDock, whose code and weights must be at hand.

    Poses have the order of the input, best first. A ligand that cannot be
    docked has an error instead, and the exit code is 1.

    After Ctrl-C, or any other end, the same command continues.
    """
    from mlff_triton.bio.docking.files import dock_files

    run_job(
        "ligands",
        out,
        ligands.stat().st_size if ligands.is_file() else 0,
        lambda show, stop: dock_files(
            receptor,
            ligands,
            out,
            model=model,
            confidence=confidence,
            code=code,
            configuration=config,
            samples=samples,
            steps=steps,
            seed=seed,
            batch=batch,
            device=device,
            workers=workers,
            scheduler=scheduler,
            overwrite=overwrite,
            show=show,
            stop=stop,
        ),
    )
