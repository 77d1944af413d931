"""Options and helpers that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mlff_triton._common.files import check_new, replace_file
from mlff_triton._common.text import printable
from mlff_triton.errors import InputError, OutputError

if TYPE_CHECKING:
    import numpy as np
    from ase import Atoms

    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.model.prediction import Ensemble
    from mlff_triton.model.tensornet import TensorNet

ModelOption = Annotated[
    str, typer.Option(help="Checkpoint, or a name that 'mlff-triton models' lists.")
]
ChargeOption = Annotated[
    int | None, typer.Option(help="Total charge; by default that of the file, or 0.")
]
CoulombOption = Annotated[
    str | None,
    typer.Option(
        help="Coulomb energy of a model with partial charges: all-pairs, reaction-field or pme; by "
        "default the model's own."
    ),
]
NoPbcOption = Annotated[
    bool, typer.Option("--no-pbc", help="Drop the cell, and compute in vacuum.")
]
DeviceOption = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or cuda:1.")]
DispersionOption = Annotated[
    str | None,
    typer.Option(
        help="Dispersion to add for a model trained without it: d3bj:pbe, d3bj:r2scan and so on."
    ),
]
FixOption = Annotated[
    str | None,
    typer.Option(
        help="Atoms to fix: indices from 0, elements and conditions, such as '0-11,Cu,z<5', or "
        "none; by default those of the file."
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")]
LARGE = 5_000  # atoms, whose first step may take longer than a user waits without a word
DtypeOption = Annotated[str, typer.Option(help="Floating-point type: float32 or float64.")]


def plain_console() -> Console:
    """Return a console that prints text as it is, without wrapping or markup."""
    return _PlainConsole(soft_wrap=True, markup=False, highlight=False)


class _PlainConsole(Console):
    """A console whose text has control characters escaped: it may quote what a user gave."""

    def print(self, *objects: Any, **options: Any) -> None:
        plain = (
            "\n".join(map(printable, x.split("\n"))) if isinstance(x, str) else x for x in objects
        )
        super().print(*plain, **options)


def best_backend(model: TensorNet | Ensemble, device: str, dtype: str, calls: int) -> str:
    """Return the backend for a command that evaluates structures that many times in all."""
    from mlff_triton._common.devices import find_device, find_dtype
    from mlff_triton.engine.dispatch import choose
    from mlff_triton.model.prediction import members_of

    return choose("auto", members_of(model), find_device(device), find_dtype(dtype), calls)


def read_one(
    structure: str,
    charge: int | None,
    periodic: bool,
    *,
    velocities: bool = False,
    information: bool = False,
) -> Atoms:
    """Read the one structure of a command, and say which frame it is if a file has several.

    A total charge that is not None replaces that of the file. On request, velocities and all
    information of the file are kept.
    """
    from mlff_triton.calculators._screening import labeled
    from mlff_triton.calculators._total_charge import total_charge
    from mlff_triton.dynamics.structures import choose_frame, clean
    from mlff_triton.readers import name_of_frame

    chosen = choose_frame(structure)
    atoms = clean(chosen.atoms, structure, periodic, velocities=velocities)
    if information:
        atoms.info = chosen.atoms.info | atoms.info
    if charge is not None:
        atoms.info["charge"] = charge
    elif "charge" in atoms.info:
        with labeled(structure):
            atoms.info["charge"] = total_charge(atoms.info)
    path, named = name_of_frame(structure)
    if chosen.total > 1 and named is None:
        name = printable(path)
        plain_console().print(
            f"takes frame {chosen.frame} of {name}, which has {chosen.total} frames, from 0 to "
            f"{chosen.total - 1}: {name}@1 names another"
        )
    return atoms


def say_dispersion(calculator: TensorNetCalculator) -> None:
    """Say what dispersion a calculator adds, and by which library, if it adds any."""
    if calculator.session.dispersion is not None:
        plain_console().print(str(calculator.session.dispersion))


def screen(systems: Sequence[Atoms], names: Sequence[str], calculator: TensorNetCalculator) -> None:
    """Refuse or warn of structures before the first step, by their names.

    Replicas, which are one object, are looked at once. Large structures are announced.
    """
    n_atoms = sum(map(len, systems))
    is_timed = announce(n_atoms, calculator)
    from mlff_triton.calculators._screening import Screening, labeled

    screening = Screening(calculator.session)
    named = {id(atoms): (atoms, name) for atoms, name in zip(systems, names, strict=True)}
    for atoms, name in named.values():
        with labeled(name):
            remarks = screening.look(atoms)
        remarks.warn(name)
    if not is_timed and calculator.session.engine.device.type == "cpu":
        _time_a_step(systems[0], n_atoms, calculator)


def announce(n_atoms: int, calculator: TensorNetCalculator) -> bool:
    """Say that many atoms have been read, and how long a step may take if that is known.

    Return False if it would be worth knowing.
    """
    if n_atoms < LARGE:
        return True
    session = calculator.session
    engine = session.engine
    ms = None if session.dispersion is not None else engine.expected_ms(n_atoms)
    time = "the first step may take a while" if ms is None else _per_step(ms / 1000)
    plain_console().print(f"read {n_atoms} atoms, to compute on {engine.device}: {time}")
    return ms is not None


def _time_a_step(atoms: Atoms, n_atoms: int, calculator: TensorNetCalculator) -> None:
    """Say how long a step of all atoms may take, by the first evaluation of one system.

    It costs nothing, as the calculator keeps the results for the run; only vibrations, which take
    six per atom, compute it again. On a GPU, the first evaluation also compiles, and says nothing
    about the next ones.
    """
    began = perf_counter()
    calculator.get_potential_energy(atoms)
    seconds = (perf_counter() - began) * n_atoms / len(atoms)
    plain_console().print(_per_step(seconds))


def _per_step(seconds: float) -> str:
    return f"about {seconds:.2g} s per step"


def outside(number: int, total: str) -> str:
    """Return a line about the number of results outside the training set, of a total."""
    from mlff_triton.calculators._screening import UNKNOWN

    return (
        f"warning: {number} of {total} outside the training set of the model; files of results say "
        f"why under {UNKNOWN}"
    )


def set_charge(systems: Sequence[Atoms], charge: int | None) -> None:
    """Replace the total charge of structures, unless it is None."""
    if charge is not None:
        for atoms in systems:
            atoms.info["charge"] = charge


def fix_atoms(atoms: Atoms, name: str, selection: str | None) -> None:
    """Fix the selected atoms instead of those that a file fixes, and say how many are fixed.

    Parameters
    ----------
    atoms : Atoms
        The structure. Modified in place.
    name : str
        Its name, for messages.
    selection : str or None
        The atoms, see `mlff_triton.dynamics.selection`; "none" for no atoms, None for those of the
        file.

    Raises
    ------
    InputError
        If the selection is invalid, or the structure has a constraint that is not supported.
    """
    from ase.constraints import FixAtoms

    from mlff_triton.calculators._fixed_atoms import fixed_atoms
    from mlff_triton.dynamics.selection import select_atoms

    try:
        if selection is not None:
            atoms.set_constraint()
            if selection.strip() != "none":
                atoms.set_constraint(FixAtoms(mask=select_atoms(atoms, selection)))
        fixed = fixed_atoms(atoms)
    except InputError as error:
        advice = " by --fix" if selection is None else ""
        raise InputError(f"{printable(name)}: {error}{advice}") from error
    if fixed.any():
        formula = atoms[fixed].get_chemical_formula()
        line = f"{printable(name)}: {fixed.sum()} of {len(atoms)} atoms are fixed ({formula})"
        plain_console().print(line)


def check_xyz(path: Path, overwrite: bool) -> None:
    """Raise an `OutputError` if extended XYZ must not or cannot be written to a file."""
    if path.suffix.lower() not in (".xyz", ".extxyz"):
        raise OutputError(f"{path} must end with .xyz or .extxyz, for extended XYZ")
    check_new(path, overwrite)


def write_xyz(path: Path, images: Sequence[Atoms], own: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write structures with their results to extended XYZ, all or none, and say so.

    ``own`` is information of the package about each structure.
    """
    from mlff_triton.statics.result_text import extended_xyz

    replace_file(path, extended_xyz(images, own))
    plain_console().print(f"wrote {path}")


def given_options(context: typer.Context) -> dict[str, Any]:
    """Return the options given on the command line."""
    given = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given[name] = value
    return given


def in_gpa(stress: np.ndarray) -> str:
    """Format a stress in eV/Å^3 as numbers in GPa."""
    from mlff_triton.units import EV_PER_A3_TO_GPA

    return " ".join(f"{value:.3f}" for value in stress * EV_PER_A3_TO_GPA)
