"""The command ``mlff-triton lammps``: LAMMPS scripts with a model instead of a pair style."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from mlff_triton.cli._exits import EXIT_INTERRUPTED, complain
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
    from mlff_triton._common.interrupt import StopRequest
    from mlff_triton.calculators.lammps.ranks import EXIT_ERROR, import_mpi
    from mlff_triton.calculators.lammps.script import Options, run_script

    rank = import_mpi().COMM_WORLD.rank
    with StopRequest() as stop:
        try:
            options = Options(device, dtype, backend, _variables(var or ()), log, quiet)
            run_script(script, options, stop)
        except MlffTritonError:
            if rank == 0:
                raise  # one line for all ranks
            raise typer.Exit(EXIT_ERROR) from None
        except KeyboardInterrupt:
            if stop() and rank == 0:
                complain("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _variables(assignments: Iterable[str]) -> dict[str, str]:
    """Return the values of LAMMPS variables by their names, from NAME=VALUE."""
    found: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not (name and equals and value.split()):
            raise InputError(f"--var {text}: write --var NAME=VALUE")
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise InputError(f"--var {text}: a name has letters, digits and underscores only")
        if name in found:
            raise InputError(f"--var {name} is given twice: give each variable once")
        found[name] = value
    return found
