"""Checks of structures before the first step, for commands that know the structures' names.

Even structures in units other than Å, without bonds, or with overlapping atoms have energies.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator
from ase.data import chemical_symbols

from mlff_triton.calculators._plausibility import (
    Pairs,
    close_pairs,
    refuse_close,
    unknown_atoms,
    unknown_chemistry,
)
from mlff_triton.calculators._screening_many import BONDED, HALF_A_BOND, plain_molecules
from mlff_triton.calculators._session import Session, System
from mlff_triton.calculators._total_charge import charge_of
from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.errors import InputError, MlffTritonError
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.neighbors.box import FloatArray
from mlff_triton.units import BOHR

UNKNOWN = "unknown_chemistry"
"""Name of the entry of result files that says why a structure is outside the training set."""
SHORTEST = 0.7
"""Smallest distance of bonded atoms at rest, as a multiple of the sum of covalent radii."""
MANY = 4
"""Number of atoms from which on a structure without any bond is taken for a mistake."""
NOBLE_GASES = (2, 10, 18, 36, 54, 86)


class UnlikelyStructureWarning(UserWarning):
    """A structure looks as if its positions were wrong."""


class Remarks(NamedTuple):
    """Findings about a structure: one line each, or empty.

    Attributes
    ----------
    structure : str
        Reason to doubt the positions.
    chemistry : str
        Difference from all that the model was trained for.
    """

    structure: str = ""
    chemistry: str = ""

    def warn(self, name: str) -> None:
        """Warn about both, with the name of the structure."""
        if self.structure:
            warnings.warn(f"{name}: {self.structure}", UnlikelyStructureWarning, stacklevel=3)
        if self.chemistry:
            warnings.warn(f"{name}: {self.chemistry}", UnknownChemistryWarning, stacklevel=3)


NO_REMARKS = Remarks()


@contextmanager
def labeled(name: str) -> Iterator[None]:
    """Put a name in front of errors."""
    try:
        yield
    except MlffTritonError as error:
        raise type(error)(f"{name}: {error}") from error


class Screening:
    """Checks of structures that replace the warnings of a session.

    Parameters
    ----------
    session : Session
        The session that computes the structures.
    judges : bool
        True if the caller calls `judge` with all results, so that the session need not warn.

    Attributes
    ----------
    has_record : bool
        True if the chemistry of the model's training set is known.
    """

    def __init__(self, session: Session, *, judges: bool = False) -> None:
        session.plausibility.mute(judges=judges)
        self._engine = session.engine
        self.has_record = session.engine.known_domain is not None
        self._limit = session.engine.uncertainty_limit

    def judge(self, atoms: Atoms, results: Mapping[str, Any], remarks: Remarks) -> Remarks:
        """Return remarks about a structure, with one about its uncertainty if that is large.

        Parameters
        ----------
        atoms : Atoms
            The structure.
        results : mapping
            Results in the form that our ASE calculator returns.
        remarks : Remarks
            Result of `look`.
        """
        known = results.get("uncertainty")
        if remarks.chemistry or self._limit is None or known is None:
            return remarks
        return remarks._replace(chemistry=unknown_atoms(atoms.numbers, known, self._limit))

    def look_at_many(self, structures: Sequence[Atoms]) -> list[Remarks | MlffTritonError]:
        """Return what `look` returns or raises for each of many structures."""
        domain, elements = self._engine.known_domain, self._engine.elements
        plain = plain_molecules(structures, domain, elements)
        return [
            NO_REMARKS if is_plain else self._outcome(atoms)
            for atoms, is_plain in zip(structures, plain, strict=True)
        ]

    def _outcome(self, atoms: Atoms) -> Remarks | MlffTritonError:
        try:
            return self.look(atoms)
        except MlffTritonError as error:
            return error

    def look(self, atoms: Atoms) -> Remarks:
        """Return remarks about one structure, with its total charge.

        There are none for elements that the model was not made for, which are an error later.

        Raises
        ------
        InputError
            If an array is invalid, if the model cannot compute systems in the box, if atoms are
            closer than half a bond, or if four or more atoms have no neighbors, as if positions
            were in Bohr or in pm.
        """
        charge = charge_of(atoms)
        batch = System(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, charge).check()
        domain, elements = self._engine.known_domain, self._engine.elements
        if not elements.issuperset(batch.numbers.tolist()):
            return NO_REMARKS
        self._engine.check_box(atoms.cell.array, atoms.pbc)
        factor = BONDED if domain is None else max(BONDED, domain.bond_factor)
        pairs = close_pairs(batch, factor)
        doubt = unlikely_structure(batch, self._engine.cutoff, pairs)
        return Remarks(doubt, unknown_chemistry(batch, domain, elements, pairs))


def warn_of_changing_cells(calculator: Calculator, stacklevel: int = 3) -> None:
    """Warn about densities if the model is known to have learned from molecules in vacuum.

    Warns
    -----
    UnknownChemistryWarning
    """
    session = getattr(calculator, "session", None)
    domain = session.engine.known_domain if isinstance(session, Session) else None
    if domain is not None and domain.is_in_vacuum:
        warnings.warn(
            "the model was trained on molecules and clusters in vacuum, so that densities of "
            "liquids and crystals are wrong, and often too high by 10 % and more: compare with "
            "experiment, or train a model on periodic structures",
            UnknownChemistryWarning,
            stacklevel=stacklevel,
        )


def unlikely_structure(batch: Batch, cutoff: float, pairs: Pairs) -> str:
    """Return a reason to doubt the positions of one system, or an empty text.

    Parameters
    ----------
    batch : Batch
        One system.
    cutoff : float
        Distance in Å up to which atoms are neighbors in the model.
    pairs : Pairs
        All pairs within `BONDED`, and maybe more.

    Raises
    ------
    InputError
        As for `Screening.look`.
    """
    refuse_close(batch, pairs, HALF_A_BOND)
    n_atoms, nearest = len(batch.numbers), _nearest(pairs, len(batch.numbers))
    if n_atoms == 1 or (nearest < BONDED).all():
        return ""
    factor = BONDED / BOHR
    wide = close_pairs(batch, factor, cutoff)
    problem = ""
    if not (nearest < BONDED).any() and _looks_like_bohr(batch, _nearest(wide, n_atoms)):
        problem = (
            "no atom is bonded to another, and all would be if positions were in Bohr: multiply "
            f"positions and cell by {BOHR:.4f}"
        )
    elif len(alone := _without_neighbors(wide, n_atoms, cutoff)):
        name = f"atom {alone[0]} ({chemical_symbols[batch.numbers[alone[0]]]})"
        problem = f"{name} has no neighbor within {cutoff:g} Å, and no forces"
        if len(alone) == n_atoms:
            problem = f"no atom has a neighbor within {cutoff:g} Å"
        elif len(alone) > 1:
            problem = f"{len(alone)} atoms have no neighbors within {cutoff:g} Å, as {name}"
        problem += ": check that positions and cell are in Å"
        if len(alone) < n_atoms:
            return problem
    if problem and n_atoms >= MANY:
        raise InputError(problem)
    return problem


def _nearest(pairs: Pairs, n_atoms: int) -> FloatArray:
    """Return the smallest ratio of each atom, [N]; infinity if there is none."""
    nearest = np.full(n_atoms, np.inf)
    np.minimum.at(nearest, pairs.receivers, pairs.ratios)
    return nearest


def _without_neighbors(pairs: Pairs, n_atoms: int, cutoff: float) -> IntArray:
    counts = np.bincount(pairs.receivers[pairs.distances < cutoff], minlength=n_atoms)
    return np.flatnonzero(counts == 0)


def _looks_like_bohr(batch: Batch, nearest: FloatArray) -> bool:
    """Return True if each atom would be bonded to its nearest one if positions were in Bohr."""
    scaled = nearest * BOHR
    is_noble = np.isin(batch.numbers, NOBLE_GASES).any()
    return bool(not is_noble and ((scaled > SHORTEST) & (scaled < BONDED)).all())
