"""The application: its commands and their shared options.

Commands import what they need when they run, so that ``--help`` does not wait for PyTorch.
"""

from __future__ import annotations

from typing import Annotated, cast

import typer
from rich.console import Console

from mlff_triton import __version__
from mlff_triton.cli.align import align
from mlff_triton.cli.bench import PASS_ON, bench
from mlff_triton.cli.calibrate import calibrate
from mlff_triton.cli.convert import convert
from mlff_triton.cli.dock import dock
from mlff_triton.cli.embed import embed
from mlff_triton.cli.energy import energy
from mlff_triton.cli.explain import explain
from mlff_triton.cli.info import info
from mlff_triton.cli.lammps import lammps
from mlff_triton.cli.md import EXAMPLES, md
from mlff_triton.cli.models import models
from mlff_triton.cli.predict import predict
from mlff_triton.cli.relax import relax
from mlff_triton.cli.train import train
from mlff_triton.cli.vibrations import vibrations

# The base class of typer's argument errors, whose module depends on the version of typer.
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="mlff-triton",
    help="TensorNet machine-learning force fields and sequence alignment.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog="\n\n".join(("Examples:", *EXAMPLES)))(md)
for command in (
    energy,
    predict,
    relax,
    vibrations,
    train,
    lammps,
    models,
    info,
    explain,
    convert,
    align,
    embed,
    dock,
    calibrate,
):
    app.command()(command)
app.command(context_settings=PASS_ON)(bench)


def _show_version(wanted: bool) -> None:
    if wanted:
        Console().print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """TensorNet machine-learning force fields and sequence alignment."""
