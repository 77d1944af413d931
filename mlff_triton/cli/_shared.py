"""Options, exit codes and helpers that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mlff_triton.cli import main
from mlff_triton.errors import OutputError

if TYPE_CHECKING:
    from ase import Atoms

EXIT_INCOMPLETE = 1
EXIT_INTERRUPTED = main.EXIT_INTERRUPTED

ModelOption = Annotated[str, typer.Option(help="Shipped model or checkpoint.")]
ChargeOption = Annotated[
    int | None, typer.Option(help="Total charge; by default that of the file, or 0.")
]
NoPbcOption = Annotated[
    bool, typer.Option("--no-pbc", help="Drop the cell, and compute in vacuum.")
]
DeviceOption = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or cuda:1.")]
DtypeOption = Annotated[str, typer.Option(help="Floating-point type: float32 or float64.")]


def plain_console() -> Console:
    """Return a console that prints text as it is, without wrapping or markup."""
    return Console(soft_wrap=True, markup=False, highlight=False)


def set_charge(systems: Sequence[Atoms], charge: int | None) -> None:
    """Replace the total charge of structures, unless it is None."""
    if charge is not None:
        for atoms in systems:
            atoms.info["charge"] = charge


def check_xyz(path: Path, overwrite: bool) -> None:
    """Raise an `OutputError` if extended XYZ must not or cannot be written to a file."""
    if path.suffix.lower() not in (".xyz", ".extxyz"):
        raise OutputError(f"{path} must end with .xyz or .extxyz, for extended XYZ")
    if path.is_dir():
        raise OutputError(f"{path} is a directory: choose another --out")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a directory: create it, or choose another --out")
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists: choose another --out, or use --overwrite")


def write_xyz(path: Path, images: Sequence[Atoms]) -> None:
    """Write structures with their results to extended XYZ, completely or not at all."""
    import io

    import ase.io

    from mlff_triton._common.files import replacing

    with replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        ase.io.write(text, images, format="extxyz")
        text.flush()
        text.detach()
