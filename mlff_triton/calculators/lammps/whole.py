"""A system that one rank owns as a whole, computed in its box without ghosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from mlff_triton.calculators.lammps.settings import find_box, find_units
from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import Exchange, PartPrediction
from mlff_triton.engine.system_part import SystemPart
from mlff_triton.neighbors.box import FloatArray


class WholeSystem:
    """All atoms of LAMMPS in one process, with the interface of `SystemPart`.

    Images of atoms need not be computed, which saves time. Only the virials of atoms are computed
    as for a part, from all atoms with their ghosts.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance on one rank.
    engine : Engine
        The model.
    part : SystemPart
        A part of that engine, in the units of LAMMPS.
    charge : int
        Total charge in elementary charges.
    """

    def __init__(self, lmp: Any, engine: Engine, part: SystemPart, charge: int) -> None:
        self._lmp = lmp
        self._engine = engine
        self._charge = charge
        self._energy = find_units(lmp).energy
        self._part = part

    def set_atoms(
        self,
        numbers: IntArray,
        n_own: int,
        n_total: int,
        exchange: Exchange | None,
        limits: FloatArray,
    ) -> None:
        """Replace all atoms and ghosts; see `SystemPart.set_atoms`."""
        self._atoms = numbers, n_own, n_total, exchange, limits
        self._limits = limits[:n_own]
        self._batch: Batch | None = None
        self._part_is_set = False

    def step(
        self,
        positions: FloatArray,
        per_atom: bool = False,
        cell: FloatArray | None = None,
        pbc: ArrayLike = False,
    ) -> PartPrediction:
        """Compute all atoms in the present box of LAMMPS; see `SystemPart.step`.

        Forces are those on own atoms. With virials of atoms, the forces on ghosts follow. A cell
        is given only if a part needs it.
        """
        numbers, n_own, *_ = self._atoms
        if per_atom or not n_own:
            if not self._part_is_set:
                self._part.set_atoms(*self._atoms)
                self._part_is_set = True
            return self._part.step(positions, per_atom, cell, pbc)
        cell, pbc = find_box(self._lmp)
        own = positions[:n_own]
        if self._batch is None:
            self._batch = Batch.of(numbers[:n_own], own, cell, pbc, charge=self._charge)
        else:
            self._batch = replace(self._batch.with_box(cell, pbc), positions=own)
        found, has_contacts = self._engine.watch(self._batch, self._limits)
        known = found.uncertainty
        return PartPrediction(
            energy=float(found.energy[0]) / self._energy,
            forces=self._converted(found.forces),
            virial=self._converted(found.virial[0]),
            atom_energies=self._converted(found.atom_energies),
            atom_virials=None,
            uncertainty=None if known is None else self._converted(known.double()),
            has_contacts=has_contacts,
        )

    def _converted(self, values: Tensor) -> FloatArray:
        """Convert values from eV and Å to the units of LAMMPS, without a copy if these are eV."""
        array: FloatArray = values.numpy()
        return array if self._energy == 1 else array / self._energy
