"""The command ``mlff-triton predict``: single points of any number of structures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlff_triton.cli._jobs import ManyDevicesOption, ReadersOption, SchedulerOption, run_job
from mlff_triton.cli._shared import (
    ChargeOption,
    CoulombOption,
    DispersionOption,
    DtypeOption,
    ModelOption,
    NoPbcOption,
    OverwriteOption,
    plain_console,
)


def predict(
    structures: Annotated[
        list[str],
        typer.Argument(
            metavar="STRUCTURE...",
            help="Files that ASE can read, folders of them, or alanine-dipeptide-water.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="File to write: extended XYZ (.xyz), Parquet (.parquet) or HDF5 (.h5)."),
    ],
    model: ModelOption = "default",
    coulomb: CoulombOption = None,
    charge: ChargeOption = None,
    no_pbc: NoPbcOption = False,
    dtype: DtypeOption = "float32",
    dispersion: DispersionOption = None,
    device: ManyDevicesOption = "auto",
    workers: ReadersOption = None,
    scheduler: SchedulerOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Compute energies, forces and stresses of any number of structures.

    Results have the order of the input. A structure that cannot be computed
    has an error instead, and the exit code is 1.

    After Ctrl-C, or any other end, the same command continues.
    """
    from mlff_triton.dispersion.damping import damping_of
    from mlff_triton.statics.inputs import find_files, total_size
    from mlff_triton.statics.predictions import predict_files

    files = find_files(structures)
    if dispersion is not None:
        plain_console().print(f"adds dispersion {damping_of(dispersion).method}")
    run_job(
        "structures",
        out,
        total_size(files),
        lambda show, stop: predict_files(
            files,
            out,
            model=model,
            coulomb=coulomb,
            charge=charge,
            periodic=not no_pbc,
            dtype=dtype,
            dispersion=dispersion,
            device=device,
            workers=workers,
            scheduler=scheduler,
            overwrite=overwrite,
            show=show,
            stop=stop,
        ),
    )
