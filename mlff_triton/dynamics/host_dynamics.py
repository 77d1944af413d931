"""Simulations with any ASE calculator, step by step on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError

from mlff_triton.calculators._fixed_atoms import moving_masses
from mlff_triton.calculators._plausibility import contact_limits
from mlff_triton.engine.motion import FloatArray
from mlff_triton.engine.stepwise_dynamics import Moves, StepwiseDynamics
from mlff_triton.kernels.dynamics.reference.barostat import press
from mlff_triton.kernels.dynamics.reference.descent import descend
from mlff_triton.kernels.dynamics.reference.integrator import advance
from mlff_triton.kernels.dynamics.reference.rescaling import choose_scale

REFERENCE = Moves(advance, choose_scale, press, descend)
Results = tuple[float, FloatArray, FloatArray | None, FloatArray | None]
"""Energy, forces, stress [3, 3] and uncertainties."""
UNCERTAINTY = "uncertainty"


class HostDynamics(StepwiseDynamics):
    """Molecular dynamics of several systems; see `mlff_triton.engine.motion.Dynamics`.

    Parameters
    ----------
    systems : sequence of Atoms
        The systems, which are copied. Atoms that they fix do not move.
    calculator : Calculator
        Any ASE calculator with energy, forces and, for a barostat, stress. A calculator with a
        method ``calculate_many``, such as ours, computes all systems in one batch.
    """

    def __init__(self, systems: Sequence[Atoms], calculator: Calculator) -> None:
        self._systems = [atoms.copy() for atoms in systems]
        for atoms in self._systems:
            atoms.set_constraint()  # because the integrator alone keeps atoms in place
        self._calculator = calculator
        super().__init__(
            counts=[len(atoms) for atoms in systems],
            pbc=np.array([atoms.pbc for atoms in systems]),
            masses=moving_masses(systems),
            limits=np.concatenate([contact_limits(atoms.numbers) for atoms in systems]),
            moves=REFERENCE,
        )

    def _compute(self, which: Sequence[int]) -> None:
        for k in which:
            atoms = self._systems[k]
            atoms.set_positions(self._positions[self._parts[k]])
            atoms.cell.array[atoms.pbc] = self._cells[k][atoms.pbc]
        for k, (energy, forces, stress, known) in zip(which, self._results(which), strict=True):
            self._note_uncertainty(self._parts[k], known)
            self._forces[self._parts[k]] = torch.from_numpy(forces)
            virial = np.full(9, np.nan)
            if stress is not None:
                virial = (stress * _volume(self._systems[k])).ravel()
            self._totals[k, 0] = energy
            self._totals[k, 1:10] = torch.from_numpy(virial)

    def _results(self, which: Sequence[int]) -> list[Results]:
        """Return energy, forces and stress [3, 3] of some systems."""
        systems = [self._systems[k] for k in which]
        many = getattr(self._calculator, "calculate_many", None)
        if many is None or len(systems) == 1:
            return [self._result(atoms) for atoms in systems]
        found = many(systems)
        return [
            (r["energy"], r["forces"], _matrix(r.get("stress")), r.get(UNCERTAINTY)) for r in found
        ]

    def _result(self, atoms: Atoms) -> Results:
        atoms.calc = self._calculator
        energy, forces = float(atoms.get_potential_energy()), atoms.get_forces()
        stress = None
        if atoms.pbc.all():
            try:
                stress = atoms.get_stress(voigt=False)
            except PropertyNotImplementedError:
                stress = None
        known = getattr(self._calculator, "results", {}).get(UNCERTAINTY)
        return energy, forces, stress, known


def _matrix(stress: FloatArray | None) -> FloatArray | None:
    """Convert a stress in Voigt's notation to a matrix."""
    if stress is None:
        return None
    xx, yy, zz, yz, xz, xy = stress
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def _volume(atoms: Atoms) -> float:
    return abs(float(np.linalg.det(atoms.cell.array)))
