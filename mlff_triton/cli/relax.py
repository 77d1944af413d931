"""The command ``mlff-triton relax``: the minimum of the energy that is nearest to a structure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mlff_triton._common.text import printable
from mlff_triton.cli._exits import EXIT_INCOMPLETE, EXIT_INTERRUPTED, complain
from mlff_triton.cli._shared import (
    ChargeOption,
    CoulombOption,
    DeviceOption,
    DispersionOption,
    DtypeOption,
    FixOption,
    ModelOption,
    NoPbcOption,
    fix_atoms,
    in_gpa,
    read_one,
    say_dispersion,
    screen,
)

if TYPE_CHECKING:
    from ase import Atoms

    from mlff_triton.statics import RelaxationStep


def relax(
    structure: Annotated[
        str, typer.Argument(help="Structure file that ASE can read, or alanine-dipeptide-water.")
    ],
    model: ModelOption = "default",
    coulomb: CoulombOption = None,
    cell: Annotated[bool, typer.Option("--cell", help="Relax the cell too.")] = False,
    fmax: Annotated[float, typer.Option(help="Largest force that may remain, eV/Å.")] = 0.01,
    steps: Annotated[int, typer.Option(help="Largest number of steps.")] = 1000,
    optimizer: Annotated[
        str, typer.Option(help="lbfgs, or fire for structures far from a minimum.")
    ] = "lbfgs",
    fix: FixOption = None,
    charge: ChargeOption = None,
    no_pbc: NoPbcOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    dispersion: DispersionOption = None,
    out: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("relax"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the results of an earlier relaxation.")
    ] = False,
) -> None:
    """Relax the atoms of a structure, and its cell.

    Exit code 1 means that it has not converged. Ctrl-C ends it after the current step.
    """
    from mlff_triton import statics
    from mlff_triton._common.interrupt import StopRequest
    from mlff_triton._common.progress import ProgressBar
    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.dynamics.outputs import check_directory
    from mlff_triton.statics.relaxation_files import FINAL, RelaxationFiles

    atoms = read_one(structure, charge, not no_pbc, information=True)
    atoms.info.pop("step", None)  # of an earlier relaxation
    fix_atoms(atoms, structure, fix)
    check_directory(out, overwrite)
    calculator = TensorNetCalculator(
        model, device=device, dtype=dtype, coulomb=coulomb, dispersion=dispersion
    )
    say_dispersion(calculator)
    screen([atoms], [structure], calculator)
    moves = statics.relax(atoms, calculator, fmax=fmax, steps=steps, optimizer=optimizer, cell=cell)
    history: list[RelaxationStep] = []
    console = Console()
    with StopRequest() as stop, ProgressBar(console, "relaxing", steps) as bar:
        for step in moves:
            if not history:  # the first step has shown that the model knows the structure
                files = RelaxationFiles(out, overwrite=overwrite)
            history.append(step)
            files.add(atoms, step)
            state = f"{step.energy:.4f} eV, largest force {step.max_force:.4f} eV/Å"
            bar.show(step.number, state, f"step {step.number} of at most {steps}, {state}")
            if stop():
                break
    files.finish(atoms, history, fmax)
    console.print(_table(atoms, history, out, cell))
    if history[-1].is_converged:
        return
    if stop():
        complain(f"stopped at step {history[-1].number}: continue from {out / FINAL}")
        raise typer.Exit(EXIT_INTERRUPTED)
    complain(
        f"not converged: the largest force is {history[-1].max_force:.4g} eV/Å after "
        f"{history[-1].number} steps, and --fmax {fmax:g}. Continue from {out / FINAL}"
        + ("" if optimizer == "fire" else ", or use --optimizer fire")
    )
    raise typer.Exit(EXIT_INCOMPLETE)


def _table(atoms: Atoms, history: list[RelaxationStep], out: Path, cell: bool) -> Table:
    from mlff_triton.statics.relaxation_files import OUTPUTS

    first, last = history[0], history[-1]
    table = Table(Column(style="bold"), "", title="Relaxation", show_header=False)
    table.add_row("atoms", str(len(atoms)))
    table.add_row("steps", f"{last.number}{'' if last.is_converged else ', not converged'}")
    table.add_row("energy", f"{last.energy:.6f} eV ({last.energy - first.energy:+.6f} eV)")
    table.add_row("largest force", f"{last.max_force:.5f} eV/Å (at first {first.max_force:.5f})")
    if cell:
        lengths = " ".join(f"{value:.4f}" for value in atoms.cell.lengths())
        angles = " ".join(f"{value:.2f}" for value in atoms.cell.angles())
        table.add_row("cell", f"{lengths} Å, {angles}°, {atoms.get_volume():.3f} Å³")
        table.add_row("stress", f"{in_gpa(atoms.get_stress())} GPa")
    table.add_row(Text(printable(f"files in {out}")), ", ".join(OUTPUTS))
    return table
