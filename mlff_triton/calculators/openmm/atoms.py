"""Selection of the atoms that a force computes, from a topology or from atomic numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mlff_triton.engine.batch import IntArray, as_array
from mlff_triton.errors import InputError, UnknownElementError
from mlff_triton.neighbors.box import FloatArray

if TYPE_CHECKING:
    from openmm.app import Topology

    Atom = Any  # openmm.app.topology.Atom, which has no types


@dataclass(frozen=True)
class Selection:
    """The atoms of the machine-learning part.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers.
    particles : int64 [N] or None
        Indices in the System, or None for all of its atoms.
    names : list of str
        Names of the atoms in messages.
    bonds : int64 [B, 2]
        Bonds of the topology between selected atoms, as indices of `numbers`.
    """

    numbers: IntArray
    particles: IntArray | None
    names: Sequence[str]
    bonds: IntArray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))

    @classmethod
    def of_numbers(cls, numbers: ArrayLike, particles: Iterable[int] | None) -> Selection:
        """Select from the atomic numbers of all atoms.

        Raises
        ------
        InputError
            If a number is not an atomic number, or a particle is not one of the atoms.
        """
        values = as_array(numbers)
        if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
            raise InputError(
                "give an openmm.app.Topology, or a list of atomic numbers, not "
                f"{type(numbers).__name__}"
            )
        chosen = check_particles(particles, len(values))
        indices = np.arange(len(values)) if chosen is None else chosen
        return cls(values[indices].astype(np.int64), chosen, [f"atom {i}" for i in indices])

    @classmethod
    def of_topology(cls, topology: Topology, particles: Iterable[int] | None) -> Selection:
        """Select from the atoms of a topology.

        Raises
        ------
        InputError
            If the particles are not atoms of the topology, or one of them has no element.
        """
        atoms = list(topology.atoms())
        if not atoms:
            raise InputError("the topology has no atoms")
        chosen = check_particles(particles, len(atoms))
        selected = atoms if chosen is None else [atoms[i] for i in chosen]
        for atom in selected:
            if atom.element is None:
                raise InputError(
                    f"{name_of(atom)} has no element, like all virtual sites: "
                    "leave it out, by particles=[...] with the indices of all others"
                )
        numbers = np.array([atom.element.atomic_number for atom in selected])
        index_of = {atom.index: k for k, atom in enumerate(selected)}
        ends = [[index_of.get(atom.index, -1) for atom in bond] for bond in topology.bonds()]
        bonds = np.array(ends, dtype=np.int64).reshape(-1, 2)
        inside = bonds[(bonds >= 0).all(axis=1)]
        return cls(numbers, chosen, [name_of(atom) for atom in selected], inside)

    def check_elements(self, known: Sequence[int]) -> None:
        """Raise `UnknownElementError` for the first atom that the model was not made for."""
        unknown = np.flatnonzero(~np.isin(self.numbers, known))
        if len(unknown):
            first = unknown[0]
            raise UnknownElementError(
                f"the model does not know {_symbol(self.numbers[first])}, which "
                f"{self.names[first]} is; it knows {', '.join(map(_symbol, known))}"
            )


def check_same_structure(topology: Topology, n_particles: int) -> None:
    """Raise `InputError` unless a topology has as many atoms as a System has particles."""
    if n_particles != topology.getNumAtoms():
        raise InputError(
            f"the System has {n_particles} particles, but the topology has "
            f"{topology.getNumAtoms()} atoms: both must describe the same structure"
        )


def check_particles(particles: Iterable[int] | None, n_atoms: int) -> IntArray | None:
    """Copy indices to an array, or raise `InputError` if one is invalid; None stands for all."""
    return None if particles is None else check_indices(particles, n_atoms)


def check_indices(
    particles: Iterable[int],
    n_atoms: int,
    name: str = "particles",
    if_empty: str = "name at least one atom, or leave it out for all",
) -> IntArray:
    """Copy indices to an array, or raise `InputError` if one is invalid."""
    try:
        indices = np.asarray(list(particles))
    except (TypeError, ValueError):
        indices = np.array("invalid")
    if indices.shape == (0,):
        raise InputError(f"{name} is empty: {if_empty}")
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        given = shorten(repr(particles), 80, placeholder="...")
        raise InputError(f"{name} must be a list of indices, which are integers: {given}")
    outside = indices[(indices < 0) | (indices >= n_atoms)]
    if len(outside):
        raise InputError(f"there is no particle {outside[0]}: the atoms are 0 to {n_atoms - 1}")
    values, counts = np.unique(indices, return_counts=True)
    if counts.max() > 1:
        raise InputError(f"{name} names atom {values[counts.argmax()]} more than once")
    return indices.astype(np.int64)


def check_bonds(topology: Topology, particles: IntArray | None) -> None:
    """Raise `InputError` for a bond that leaves the part: the model would see a radical."""
    if particles is None:
        return
    inside = set(particles.tolist())
    for bond in topology.bonds():
        if bond[0].element is None or bond[1].element is None:
            continue
        if (bond[0].index in inside) != (bond[1].index in inside):
            ours, theirs = sorted(bond, key=lambda atom: atom.index not in inside)
            raise InputError(
                f"a bond leaves the machine-learning part, from {name_of(ours)} to "
                f"{name_of(theirs)}: take both or none, or let openmm-ml cap it with hydrogen, by "
                "MLPotential('mlff-triton').createMixedSystem"
            )


def box_of(topology: Topology) -> FloatArray | None:
    """Return the box vectors of a topology, float64 [3, 3] in nm, or None."""
    vectors = topology.getPeriodicBoxVectors()
    if vectors is None:
        return None
    return np.array([[float(x) for x in v] for v in vectors._value])


def name_of(atom: Atom) -> str:
    """Return the index, name and residue of an atom of a topology."""
    return f"atom {atom.index} ({atom.name} of {atom.residue.name} {atom.residue.id})"


def _symbol(number: int) -> str:
    from ase.data import chemical_symbols

    known = 0 < number < len(chemical_symbols)
    return str(chemical_symbols[number]) if known else f"atomic number {number}"
