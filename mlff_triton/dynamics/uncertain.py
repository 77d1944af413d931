"""Simulations that stop if the uncertainty of an atom is too large."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator

from mlff_triton._common.files import replace_file
from mlff_triton.dynamics import outputs
from mlff_triton.dynamics.systems import name_atom, split
from mlff_triton.engine.motion import UncertainAtomError
from mlff_triton.errors import InputError
from mlff_triton.model.prediction import check_has_uncertainty


def knows_uncertainty(calculator: Calculator) -> bool:
    """Return True if a calculator predicts the error of the force on each atom."""
    return "uncertainty" in getattr(calculator, "implemented_properties", ())


def check_limit(limit: float | None, calculator: Calculator, *, is_divided: bool) -> None:
    """Raise `InputError` unless a run can stop at an uncertainty, in eV/Å; None for no stop."""
    if limit is None:
        return
    if not 0 < limit < np.inf:
        raise InputError(f"an uncertainty to stop at must be above 0 eV/Å, not {limit:g}")
    check_has_uncertainty(knows_uncertainty(calculator))
    if is_divided:
        raise InputError("a run on several devices cannot stop at an uncertainty: use one device")


def save_uncertain(
    error: UncertainAtomError, systems: Sequence[Atoms], limit: float, directory: Path
) -> str:
    """Write the structures with an uncertain atom, and return a message.

    Parameters
    ----------
    error : UncertainAtomError
        The step, and the uncertainties in it.
    systems : sequence of Atoms
        All systems, in any state.
    limit : float
        Uncertainty in eV/Å at which to stop.
    directory : Path
        Directory of the run.

    Returns
    -------
    str
        Step, atom and uncertainty, and the name of the file.
    """
    known, atom = error.uncertainty, int(error.uncertainty.argmax())
    found = [atoms.copy() for atoms in systems]
    of_atoms = zip(split(error.positions, found), split(known, found), strict=True)
    for atoms, cell, (positions, own) in zip(found, error.cell, of_atoms, strict=True):
        atoms.set_constraint()
        atoms.arrays.pop("momenta", None)  # of an earlier step
        atoms.positions[:] = positions
        atoms.cell.array[atoms.pbc] = cell[atoms.pbc]
        atoms.set_array("uncertainty", own.copy())
        atoms.info["step"] = error.step
    text = io.StringIO()
    ase.io.write(text, found, format="extxyz")
    path = directory / outputs.UNCERTAIN
    replace_file(path, text.getvalue().encode())
    return (
        f"stopped in step {error.step}: the model expects an error of {known[atom]:.3g} eV/Å in "
        f"the force on {name_atom(atom, systems)}, more than {limit:g}; {path} holds this structure"
    )
