"""Relaxation of one structure, and of its cell, with the optimizers of ASE."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator
from ase.constraints import FixAtoms
from ase.filters import FrechetCellFilter
from ase.optimize import FIRE, LBFGS

from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.calculators._screening import warn_of_changing_cells
from mlff_triton.dynamics.stages import check_positive
from mlff_triton.errors import InputError

OPTIMIZERS = {"lbfgs": LBFGS, "fire": FIRE}


@dataclass(frozen=True)
class RelaxationStep:
    """State of a relaxation.

    Attributes
    ----------
    number : int
        Number of steps so far.
    energy : float
        Potential energy in eV.
    max_force : float
        Largest force on an atom that is not fixed, in eV/Å. If the cell is relaxed, it includes the
        derivatives of the energy by the strain, per atom in eV, because they are part of the
        criterion.
    is_converged : bool
        True if the largest force is below the threshold.
    """

    number: int
    energy: float
    max_force: float
    is_converged: bool


def relax(
    atoms: Atoms,
    calculator: Calculator,
    *,
    fmax: float = 0.01,
    steps: int = 1000,
    optimizer: str = "lbfgs",
    cell: bool = False,
) -> Iterator[RelaxationStep]:
    """Minimize the energy of a structure.

    Parameters
    ----------
    atoms : Atoms
        The structure. Moved in place, and left with the calculator attached. Fixed atoms do not
        move, or move only with the cell and keep their fractional coordinates.
    calculator : Calculator
        A calculator of ASE.
    fmax : float
        Converged if no force is as large as this, eV/Å.
    steps : int
        Largest number of steps.
    optimizer : {"lbfgs", "fire"}
        L-BFGS takes fewer steps; FIRE tolerates worse starts.
    cell : bool
        Relax the cell too, by ``FrechetCellFilter`` of ASE.

    Yields
    ------
    RelaxationStep
        The state at the start and after each step.

    Raises
    ------
    InputError
        If an option is invalid, the structure has a constraint that does more than fix atoms, or
        the cell of a structure that is not periodic is to be relaxed.

    Warns
    -----
    UnknownChemistryWarning
        If the cell is relaxed, and the model learned from molecules in vacuum.
    """
    if optimizer not in OPTIMIZERS:
        raise InputError(f"optimizer={optimizer!r} is unknown: use one of {', '.join(OPTIMIZERS)}")
    check_positive("fmax", fmax)
    if steps < 0:
        raise InputError(f"steps={steps} must not be negative")
    fixed = FixAtoms(mask=fixed_atoms(atoms))  # which refuses other constraints
    if cell and not atoms.pbc.all():
        raise InputError("the cell cannot be relaxed, as the structure is not periodic in 3D")
    if cell:
        warn_of_changing_cells(calculator)
    return _steps(atoms, calculator, fixed, fmax, steps, optimizer, cell)


def _steps(
    atoms: Atoms,
    calculator: Calculator,
    fixed: FixAtoms,
    fmax: float,
    steps: int,
    optimizer: str,
    cell: bool,
) -> Iterator[RelaxationStep]:
    atoms.calc = calculator
    target = FrechetCellFilter(atoms) if cell else atoms
    run = _descent(target, fmax, steps, optimizer)
    with _constrained(atoms, fixed):
        for number in count():
            with warnings.catch_warnings():
                # SciPy warns if the matrix logarithms of the filter are off by 1e-12.
                warnings.filterwarnings("ignore", "logm result may be inaccurate")
                is_converged = next(run, None)
                if is_converged is None:
                    return
                largest = float(np.linalg.norm(target.get_forces(), axis=1).max())
            energy = float(atoms.get_potential_energy())
            yield RelaxationStep(number, energy, largest, is_converged)


def _descent(
    target: Atoms | FrechetCellFilter, fmax: float, steps: int, optimizer: str
) -> Iterator[bool]:
    """Yield True if converged, at the start and after each step.

    L-BFGS restarts after a step along which the energy curves down, because such a step would teach
    it to go uphill. FIRE learns no curvatures.
    """
    done = 0
    while True:
        with OPTIMIZERS[optimizer](target, logfile=None) as moves:
            run = moves.irun(fmax, steps - done)
            is_converged = bool(next(run))
            if not done:
                yield is_converged
            positions, forces = target.get_positions(), target.get_forces()
            for is_converged in run:
                done += 1
                yield bool(is_converged)
                before = positions, forces
                positions, forces = target.get_positions(), target.get_forces()
                curves_down = np.vdot(positions - before[0], forces - before[1]) >= 0
                if optimizer == "lbfgs" and curves_down:
                    break
            else:
                return


@contextmanager
def _constrained(atoms: Atoms, fixed: FixAtoms) -> Iterator[None]:
    """Keep fixed atoms in place to the last bit, unlike ``FixScaled`` of ASE."""
    given = atoms.constraints
    atoms.set_constraint(fixed)
    try:
        yield
    finally:
        atoms.set_constraint(given)
