"""The command ``mlff-triton vibrations``: frequencies and thermochemistry of a structure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from mlff_triton._common.files import check_new, replace_file
from mlff_triton.cli._exits import EXIT_INCOMPLETE, complain
from mlff_triton.cli._shared import (
    ChargeOption,
    CoulombOption,
    DeviceOption,
    DispersionOption,
    DtypeOption,
    FixOption,
    ModelOption,
    NoPbcOption,
    check_xyz,
    fix_atoms,
    given_options,
    plain_console,
    read_one,
    say_dispersion,
    screen,
    write_xyz,
)
from mlff_triton.errors import InputError, OutputError

if TYPE_CHECKING:
    from ase import Atoms

    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.statics import IdealGas, Vibrations

RELAXED = 0.02  # eV/Å
CLOSE = 0.001  # eV/Å, in a minimum that is searched for
ROUNDS = 5  # at most, of displacing and relaxing


def vibrations(
    context: typer.Context,
    structure: Annotated[
        str, typer.Argument(help="Relaxed structure, in a file that ASE can read.")
    ],
    model: ModelOption = "default",
    coulomb: CoulombOption = None,
    displacement: Annotated[float, typer.Option(help="Displacement of atoms, Å.")] = 0.01,
    temperature: Annotated[
        float | None, typer.Option(help="Temperature in K, to add thermochemistry of an ideal gas.")
    ] = None,
    pressure: Annotated[float, typer.Option(help="Pressure of the ideal gas in bar.")] = 1.0,
    symmetry_number: Annotated[int, typer.Option(help="Symmetry number of the molecule.")] = 1,
    spin: Annotated[float, typer.Option(help="Electronic spin, such as 0.5 for a radical.")] = 0.0,
    fix: FixOption = None,
    charge: ChargeOption = None,
    no_pbc: NoPbcOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float64",
    dispersion: DispersionOption = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the modes: extended XYZ, one frame per mode.")
    ] = None,
    frequencies: Annotated[
        Path | None, typer.Option(help="File for the frequencies: .csv or .json.")
    ] = None,
    minimum: Annotated[
        Path | None,
        typer.Option(
            help="If modes are imaginary, displace along mode 0 and relax again; write the minimum "
            "to this file, extended XYZ."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files.")] = False,
) -> None:
    """Compute harmonic frequencies, zero-point energy and thermochemistry.

    The structure must be at rest: see relax. Exit code 1 means that --minimum has found none.
    """
    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.statics.vibrations import check_ideal_gas

    if temperature is None:
        _check_unused(given_options(context))
    _check_outputs((out, minimum), frequencies, overwrite)
    atoms = read_one(structure, charge, not no_pbc, information=True)
    fix_atoms(atoms, structure, fix)
    if temperature is not None:
        check_ideal_gas(atoms, temperature, pressure, symmetry_number, spin)
    calculator = TensorNetCalculator(
        model, device=device, dtype=dtype, coulomb=coulomb, dispersion=dispersion
    )
    say_dispersion(calculator)
    screen([atoms], [structure], calculator)
    found = _find(atoms, calculator, displacement)
    if minimum is not None:
        found = _descend(found, calculator, displacement)
        write_xyz(minimum, [_with_energy(found)])
    Console().print(_mode_table(found))
    _warn_about(found, structure, is_minimized=minimum is not None)
    if out is not None:
        write_xyz(out, *_mode_frames(found))
    gas = None
    if temperature is not None and (minimum is None or _is_minimum(found)):
        gas = found.ideal_gas(temperature, pressure, symmetry_number, spin)
        Console().print(_gas_table(gas))
    if frequencies is not None:
        _write_frequencies(frequencies, found, gas)
    if minimum is not None and not _is_minimum(found):
        raise typer.Exit(EXIT_INCOMPLETE)


def _check_unused(given: Iterable[str]) -> None:
    """Raise `InputError` if an option is given that has no effect without a temperature."""
    for name in given:
        if name in ("pressure", "symmetry_number", "spin"):
            option = name.replace("_", "-")
            raise InputError(f"--{option} has no effect without --temperature: leave it out")


def _check_outputs(
    structures: Iterable[Path | None], frequencies: Path | None, overwrite: bool
) -> None:
    """Raise an `OutputError` if structures or frequencies must not or cannot be written."""
    for path in structures:
        if path is not None:
            check_xyz(path, overwrite)
    if frequencies is not None:
        if frequencies.suffix.lower() not in (".csv", ".json"):
            raise OutputError(f"{frequencies} must end with .csv or .json, for frequencies")
        check_new(frequencies, overwrite)


def _write_frequencies(path: Path, found: Vibrations, gas: IdealGas | None) -> None:
    from mlff_triton.statics.vibration_files import frequencies_as_csv, frequencies_as_json

    is_json = path.suffix.lower() == ".json"
    replace_file(path, frequencies_as_json(found, gas) if is_json else frequencies_as_csv(found))
    plain_console().print(f"wrote {path}")


def _find(atoms: Atoms, calculator: TensorNetCalculator, displacement: float) -> Vibrations:
    """Find the vibrations of a structure with a progress bar."""
    from mlff_triton._common.progress import ProgressBar
    from mlff_triton.calculators._fixed_atoms import fixed_atoms
    from mlff_triton.statics import find_vibrations

    total = 6 * int((~fixed_atoms(atoms)).sum())
    with ProgressBar(Console(), "displacements", total) as bar:
        return find_vibrations(
            atoms,
            calculator,
            displacement,
            lambda done: bar.show(done, "", f"{done} of {total} displacements"),
        )


def _is_minimum(found: Vibrations) -> bool:
    return found.n_imaginary == 0 and found.max_force <= RELAXED


def _descend(found: Vibrations, calculator: TensorNetCalculator, displacement: float) -> Vibrations:
    """Displace along mode 0 if it is imaginary, and relax, until the structure is at a minimum."""
    from mlff_triton.statics import relax

    for _ in range(ROUNDS):
        if _is_minimum(found):
            break
        before, is_saddle = found, found.n_imaginary > 0
        atoms = found.displaced() if is_saddle else found.atoms.copy()
        *_, last = relax(atoms, calculator, fmax=CLOSE, optimizer="fire")
        found = _find(atoms, calculator, displacement)
        along = f"displaced along mode 0 ({_real_or_imaginary(before.frequencies[0])} 1/cm) and "
        plain_console().print(
            f"{along if is_saddle else ''}relaxed in {last.number} steps: energy "
            f"{found.energy:.6f} eV ({found.energy - before.energy:+.6f} eV)"
        )
    return found


def _with_energy(found: Vibrations) -> Atoms:
    from ase.calculators.singlepoint import SinglePointCalculator

    atoms: Atoms = found.atoms.copy()
    atoms.calc = SinglePointCalculator(atoms, energy=found.energy)
    return atoms


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


def _warn_about(found: Vibrations, structure: str, *, is_minimized: bool) -> None:
    """Warn about forces and about imaginary modes, and say what to do."""
    if found.max_force > RELAXED:
        complain(
            f"warning: the largest force is {found.max_force:.3g} eV/Å, so that frequencies mean "
            f"little: mlff-triton relax {structure} first"
        )
    if found.n_imaginary:
        modes = "1 mode is" if found.n_imaginary == 1 else f"{found.n_imaginary} modes are"
        advice = ""
        if found.max_force <= RELAXED and not is_minimized:
            advice = (
                "; displace along mode 0 and relax again, by mlff-triton vibrations "
                f"{structure} --minimum minimum.xyz"
            )
        complain(
            f"warning: {modes} imaginary: the structure is not at a minimum of the energy{advice}"
        )


def _mode_frames(found: Vibrations) -> tuple[list[Atoms], list[dict[str, Any]]]:
    """Return a copy of the structure for each mode, with its displacements of norm 1, and names."""
    frames, names = [], []
    for k, (frequency, mode) in enumerate(zip(found.frequencies, found.modes, strict=True)):
        frame = found.atoms.copy()
        frame.set_array("mode", mode)
        shown = _real_or_imaginary(frequency)
        frames.append(frame)
        names.append({"mode": k, "frequency": shown if frequency.imag else float(shown)})
    return frames, names


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
