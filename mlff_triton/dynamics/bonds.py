"""Covalent bonds at the start of a run, which reveal later that a molecule has fallen apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from ase import Atoms
from ase.data import covalent_radii
from numpy.typing import NDArray

from mlff_triton.engine.motion import FloatArray, State
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.neighbor_list import find_pairs

BONDED, BROKEN = 1.3, 2.0
"""Lengths up to which atoms are bonded, and from which on they are not, as multiples of the sum of
their covalent radii. Vibrations at 3000 K stretch bonds to about 1.5."""

NONMETALS = np.array([1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 33, 34, 35, 53])
"""Atomic numbers of elements whose bonds are watched. Atoms of metals change their neighbors."""


class Bonds(NamedTuple):
    """Bonds of all systems of a run.

    Attributes
    ----------
    pairs : int32 [M, 2]
        Atoms of each bond, numbered through all systems.
    shifts : int32 [M, 3]
        Lattice translation of the second atom.
    """

    pairs: NDArray[np.int32]
    shifts: NDArray[np.int32]

    @classmethod
    def of(cls, systems: Sequence[Atoms]) -> Bonds:
        """Return the bonds of systems; each hydrogen has one bond, to its closest atom."""
        found, first = [], 0
        for atoms in systems:
            pairs, shifts = _bonds_of(atoms)
            found.append((pairs + first, shifts))
            first += len(atoms)
        return cls(*(np.concatenate(parts).astype(np.int32) for parts in zip(*found, strict=True)))

    def lengths(self, state: State, systems: Sequence[Atoms]) -> FloatArray:
        """Return the length of each bond in a state in Å, float64 [M]."""
        system = np.repeat(np.arange(len(systems)), [len(atoms) for atoms in systems])
        i, j = self.pairs.T
        translations = np.einsum("ma,mab->mb", self.shifts, state.cell[system[i]])
        return np.asarray(
            np.linalg.norm(state.positions[i] - state.positions[j] - translations, axis=1)
        )

    def broken(self, state: State, systems: Sequence[Atoms]) -> NDArray[np.intp]:
        """Return the indices of broken bonds, without those of hydrogen atoms that have moved on.

        A hydrogen atom that has left its partner for another atom, as protons do in water, still
        has a bond.
        """
        numbers = np.concatenate([atoms.numbers for atoms in systems])
        limits = BROKEN * covalent_radii[numbers[self.pairs]].sum(axis=1)
        gone = np.flatnonzero(~(self.lengths(state, systems) < limits))
        return np.array([k for k in gone if not self._has_moved_on(k, state, systems)], np.intp)

    def _has_moved_on(self, bond: int, state: State, systems: Sequence[Atoms]) -> bool:
        """Return True if the hydrogen atom of a broken bond is now bonded to another atom."""
        ends = np.cumsum([len(atoms) for atoms in systems])
        system = int(np.searchsorted(ends, self.pairs[bond, 0], side="right"))
        atoms, first = systems[system], int(ends[system]) - len(systems[system])
        moved = atoms.copy()
        moved.set_constraint()
        moved.positions = state.positions[first : ends[system]]
        moved.cell.array[moved.pbc] = state.cell[system][moved.pbc]
        for atom in self.pairs[bond] - first:
            if atoms.numbers[atom] == 1:
                others = np.delete(np.arange(len(atoms)), atom)
                distances = moved.get_distances(atom, others, mic=bool(moved.pbc.any()))
                radii = covalent_radii[1] + covalent_radii[atoms.numbers[others]]
                if (distances < BONDED * radii).any():
                    return True
        return False


def _bonds_of(atoms: Atoms) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs [M, 2] and shifts [M, 3] of the bonds of a system."""
    chosen = np.flatnonzero(np.isin(atoms.numbers, NONMETALS))
    if not len(chosen):
        return np.empty((0, 2), np.int64), np.empty((0, 3), np.int64)
    radii, box = covalent_radii[atoms.numbers[chosen]], Box.of(atoms.cell.array, atoms.pbc)
    positions = np.ascontiguousarray(atoms.positions[chosen])
    graph = find_pairs(positions, box, 2 * BONDED * float(radii.max()))
    cell = torch.from_numpy(box.cell)[None]
    lengths = graph.vectors(torch.from_numpy(positions), cell, None).norm(dim=1).numpy()
    i, j = graph.receivers.numpy(), graph.senders.numpy()
    ratios = lengths / (radii[i] + radii[j])
    closest = np.full(len(chosen), np.inf)
    np.minimum.at(closest, i, ratios)
    most = np.where(atoms.numbers[chosen] == 1, 1.0001 * closest, BONDED)
    once = np.arange(len(i)) < graph.reverse.numpy()
    kept = once & (ratios < BONDED) & (ratios <= most[i]) & (ratios <= most[j])
    return np.stack([chosen[i], chosen[j]], axis=1)[kept], graph.shifts.numpy()[kept]
