"""The command ``mlff-triton lammps``: LAMMPS scripts with a model instead of a pair style."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlff_triton.cli._shared import DeviceOption, DtypeOption
from mlff_triton.errors import InputError, MlffTritonError


def lammps(
    script: Annotated[Path, typer.Argument(help="LAMMPS input script.")],
    var: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Variable of the script; may be repeated."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Log file of LAMMPS.", show_default="log.lammps")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    backend: Annotated[str, typer.Option(help="Backend of the engine.")] = "auto",
) -> None:
    """Run a LAMMPS script, alone or on several GPUs by mpiexec.

    In the script, one command takes the place of pair_style and pair_coeff.
    It names the model and the element of each atom type:

        mlff_triton default H O

    On four GPUs: mpiexec -n 4 mlff-triton lammps in.lammps
    """
    from mlff_triton.calculators.lammps.ranks import EXIT_ERROR, import_mpi
    from mlff_triton.calculators.lammps.script import Options, run_script

    rank = import_mpi().COMM_WORLD.rank
    try:
        variables = dict(_assignment(text) for text in var or ())
        run_script(script, Options(device, dtype, backend, variables, log, quiet))
    except MlffTritonError:
        if rank == 0:
            raise  # one line for all ranks
        raise typer.Exit(EXIT_ERROR) from None


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InputError(f"--var {text}: write --var NAME=VALUE")
    return name, value
