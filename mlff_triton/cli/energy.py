"""The command ``mlff-triton energy``: single points of all frames of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mlff_triton._common.text import printable
from mlff_triton.cli._exits import complain
from mlff_triton.cli._shared import (
    ChargeOption,
    CoulombOption,
    DeviceOption,
    DispersionOption,
    DtypeOption,
    ModelOption,
    NoPbcOption,
    OverwriteOption,
    best_backend,
    check_xyz,
    in_gpa,
    outside,
    say_dispersion,
    set_charge,
    write_xyz,
)

if TYPE_CHECKING:
    from ase import Atoms

    from mlff_triton.calculators._screening import Remarks

WARNINGS = 10  # structures that are named


def energy(
    structures: Annotated[
        list[str],
        typer.Argument(
            metavar="STRUCTURE...",
            help="Structure files that ASE can read, or alanine-dipeptide-water.",
        ),
    ],
    model: ModelOption = "default",
    coulomb: CoulombOption = None,
    charge: ChargeOption = None,
    no_pbc: NoPbcOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    dispersion: DispersionOption = None,
    out: Annotated[
        Path | None, typer.Option(help="File for energies, forces and stresses: extended XYZ.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Compute energies, forces and stresses of structures, in batches.

    All frames of each file are computed.
    """
    from mlff_triton._common.progress import ProgressBar
    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.calculators._screening import UNKNOWN, Screening, labeled
    from mlff_triton.checkpoints import load_model
    from mlff_triton.checkpoints.dispersion import warn_of_dispersion
    from mlff_triton.statics import compute_all, read_frames

    if out is not None:
        check_xyz(out, overwrite)
    images, labels = [], []
    for name in structures:
        frames = read_frames(name, periodic=not no_pbc)
        images += frames
        labels += [(name, k) for k in range(len(frames))]
    set_charge(images, charge)
    loaded = load_model(model, coulomb=coulomb)
    backend = best_backend(loaded, device, dtype, len(images))
    calculator = TensorNetCalculator(
        loaded, device=device, dtype=dtype, backend=backend, dispersion=dispersion
    )
    if calculator.session.dispersion is not None:
        warn_of_dispersion(model, calculator.session.dispersion.method)
    say_dispersion(calculator)
    names = [f"{name}, frame {k}" for name, k in labels]
    results, remarks, screening = [], [], Screening(calculator.session, judges=True)
    for atoms, name in zip(images, names, strict=True):
        with labeled(name):
            remarks.append(screening.look(atoms))
    console = Console()
    with ProgressBar(console, "energies", len(images)) as bar:
        for atoms in compute_all(images, calculator, names):
            results.append(atoms)
            bar.show(len(results), "", f"{len(results)} of {len(images)} structures")
    console.print(_table(labels, results))
    judged = zip(results, remarks, strict=True)
    remarks = [screening.judge(atoms, atoms.calc.results, found) for atoms, found in judged]
    if out is not None:
        write_xyz(out, results, [{UNKNOWN: found.chemistry or None} for found in remarks])
    _warn(remarks, names)


def _warn(remarks: list[Remarks], names: list[str]) -> None:
    """Warn of some structures by their names, and count those outside the training set."""
    doubtful = [pair for pair in zip(remarks, names, strict=True) if any(pair[0])]
    for found, name in doubtful[:WARNINGS]:
        found.warn(name)
    n_unknown = sum(bool(found.chemistry) for found in remarks)
    if n_unknown and len(remarks) > 1:
        complain(outside(n_unknown, f"{len(remarks)} structures"))


def _table(labels: list[tuple[str, int]], results: list[Atoms]) -> Table:
    """Make the table of results: a row per structure; titles and stresses if there are any."""
    import numpy as np

    stresses = [atoms.calc.results.get("stress") for atoms in results]
    titles = ("frame", "atoms", "energy, eV", "largest force, eV/Å")
    table = Table("structure", *(Column(title, justify="right") for title in titles))
    names = [Text(printable(atoms.info.get("title", ""))) for atoms in results]
    known = [atoms.calc.results.get("uncertainty") for atoms in results]
    has_uncertainty = any(values is not None for values in known)
    if has_uncertainty:
        table.add_column("largest expected error, eV/Å", justify="right")
    if any(names):
        table.add_column("title")
    if any(stress is not None for stress in stresses):
        table.add_column("stress xx, yy, zz, yz, xz, xy, GPa")
    for (source, k), title, atoms, stress in zip(labels, names, results, stresses, strict=True):
        largest = np.linalg.norm(atoms.get_forces(), axis=1).max()
        row: list[str | Text] = [Text(printable(source)), str(k), str(len(atoms))]
        row += [f"{atoms.get_potential_energy():.6f}", f"{largest:.4f}"]
        if has_uncertainty:
            row.append(f"{atoms.calc.results['uncertainty'].max():.4f}")
        row += [title] * any(names)
        if stress is not None:
            row.append(in_gpa(stress))
        table.add_row(*row)
    return table
