"""The command ``mlff-triton vibrations``: frequencies and thermochemistry of a structure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from mlff_triton.cli._shared import (
    ChargeOption,
    DeviceOption,
    DtypeOption,
    FixOption,
    ModelOption,
    NoPbcOption,
    OverwriteOption,
    check_xyz,
    fix_atoms,
    given_options,
    read_one,
    screen,
    write_xyz,
)
from mlff_triton.cli.main import complain
from mlff_triton.errors import InputError

if TYPE_CHECKING:
    from ase import Atoms

    from mlff_triton.statics import IdealGas, Vibrations

RELAXED = 0.02  # eV/Å


def vibrations(
    context: typer.Context,
    structure: Annotated[
        str, typer.Argument(help="Relaxed structure, in a file that ASE can read.")
    ],
    model: ModelOption = "default",
    displacement: Annotated[float, typer.Option(help="Displacement of atoms, Å.")] = 0.01,
    temperature: Annotated[
        float | None, typer.Option(help="Add the thermochemistry of an ideal gas at so many K.")
    ] = None,
    pressure: Annotated[float, typer.Option(help="Pressure of the ideal gas in bar.")] = 1.0,
    symmetry_number: Annotated[int, typer.Option(help="Symmetry number of the molecule.")] = 1,
    spin: Annotated[float, typer.Option(help="Electronic spin, such as 0.5 for a radical.")] = 0.0,
    fix: FixOption = None,
    charge: ChargeOption = None,
    no_pbc: NoPbcOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float64",
    out: Annotated[
        Path | None, typer.Option(help="File for the modes: extended XYZ, one frame per mode.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Compute harmonic frequencies, zero-point energy and thermochemistry.

    The structure must be at rest: see relax.
    """
    from mlff_triton._common.progress import ProgressBar
    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.calculators._fixed_atoms import fixed_atoms
    from mlff_triton.statics import find_vibrations
    from mlff_triton.statics.vibrations import check_ideal_gas

    for name in given_options(context):
        if temperature is None and name in ("pressure", "symmetry_number", "spin"):
            option = name.replace("_", "-")
            raise InputError(f"--{option} has no effect without --temperature: leave it out")
    if out is not None:
        check_xyz(out, overwrite)
    atoms = read_one(structure, charge, not no_pbc)
    fix_atoms(atoms, structure, fix)
    if temperature is not None:
        check_ideal_gas(atoms, temperature, pressure, symmetry_number, spin)
    calculator = TensorNetCalculator(model, device=device, dtype=dtype)
    screen([atoms], [structure], calculator)
    console, total = Console(), 6 * int((~fixed_atoms(atoms)).sum())
    with ProgressBar(console, "displacements", total) as bar:
        found = find_vibrations(
            atoms,
            calculator,
            displacement,
            lambda done: bar.show(done, "", f"{done} of {total} displacements"),
        )
    console.print(_mode_table(found))
    _warn_about(found, structure)
    if out is not None:
        write_xyz(out, _mode_frames(found))
    if temperature is not None:
        gas = found.ideal_gas(temperature, pressure, symmetry_number, spin)
        console.print(_gas_table(gas))


def _mode_table(found: Vibrations) -> Table:
    """Make the table of modes, with the zero-point energy as its caption."""
    titles = ("mode", "frequency, 1/cm", "energy, meV")
    table = Table(*(Column(title, justify="right") for title in titles), title="Vibrations")
    for k, (frequency, quantum) in enumerate(zip(found.frequencies, found.energies, strict=True)):
        table.add_row(str(k), _real_or_imaginary(frequency), _real_or_imaginary(1000 * quantum))
    table.caption = f"zero-point energy {found.zero_point_energy:.4f} eV"
    return table


def _real_or_imaginary(value: complex) -> str:
    return f"{value.imag:.1f}i" if value.imag else f"{value.real:.1f}"


def _warn_about(found: Vibrations, structure: str) -> None:
    """Warn about forces and about imaginary modes."""
    if found.max_force > RELAXED:
        complain(
            f"warning: the largest force is {found.max_force:.3g} eV/Å, so that frequencies mean "
            f"little: mlff-triton relax {structure} first"
        )
    if found.n_imaginary:
        modes = "1 mode is" if found.n_imaginary == 1 else f"{found.n_imaginary} modes are"
        complain(f"warning: {modes} imaginary: the structure is not at a minimum of the energy")


def _mode_frames(found: Vibrations) -> list[Atoms]:
    """Return a copy of the structure for each mode, with its displacements of norm 1."""
    frames = []
    for k, (frequency, mode) in enumerate(zip(found.frequencies, found.modes, strict=True)):
        frame = found.atoms.copy()
        frame.set_array("mode", mode)
        shown = _real_or_imaginary(frequency)
        frame.info.update(mode=k, frequency=shown if frequency.imag else float(shown))
        frames.append(frame)
    return frames


def _gas_table(gas: IdealGas) -> Table:
    from mlff_triton.units import EV_TO_KJ_PER_MOL

    title = f"Ideal gas at {gas.temperature:g} K and {gas.pressure:g} bar"
    numbers = (Column(unit, justify="right") for unit in ("eV", "kJ/mol"))
    table = Table("", *numbers, title=title)
    for name, value in (
        ("enthalpy H", gas.enthalpy),
        ("entropy TS", gas.temperature * gas.entropy),
        ("Gibbs energy G", gas.gibbs_energy),
    ):
        table.add_row(name, f"{value:.4f}", f"{value * EV_TO_KJ_PER_MOL:.2f}")
    return table
