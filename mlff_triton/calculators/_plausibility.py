"""Refusal of implausible structures, and warnings about chemistry unknown to the model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from ase.data import chemical_symbols, covalent_radii
from numpy.typing import NDArray

from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import InputError
from mlff_triton.model.known_domain import KnownDomain, UnknownChemistryWarning, bond_name
from mlff_triton.model.prediction import Prediction
from mlff_triton.neighbors.box import FloatArray
from mlff_triton.neighbors.neighbor_list import check_apart, find_pairs

TOO_CLOSE = 0.3
"""Smallest possible distance, as a multiple of the sum of covalent radii. Bonds are near 1;
structures in nm that were read as Å are near 0.1."""

SMALL = 64
"""Number of atoms up to which all pairs are compared."""


CODES = np.random.default_rng(0).integers(1 << 63, size=(2, len(chemical_symbols)), dtype=np.uint64)
"""Random numbers for each element, as an atom and as a neighbor; their sums distinguish atoms with
different neighbors."""


class Pairs(NamedTuple):
    """Pairs of atoms: indices int64 [P], distances in Å and in sums of covalent radii."""

    receivers: IntArray
    senders: IntArray
    distances: FloatArray
    ratios: FloatArray


def contact_limits(numbers: IntArray) -> FloatArray:
    """Return the share of each atom in the smallest possible distances in Å, float64 [N]."""
    return np.asarray(TOO_CLOSE * covalent_radii[numbers])


def check_distances(batch: Batch, labels: IntArray | None = None) -> None:
    """Raise `InputError` if atoms of one system are closer than in any structure.

    The rule is conservative, based on covalent radii, and the same for all models. The message
    refers to atoms by their labels, or by their indices if there are none.
    """
    if not _are_elements(batch) or _is_open_and_spacious(batch):
        return
    refuse_close(batch, close_pairs(batch, TOO_CLOSE), TOO_CLOSE, labels)


def refuse_close(batch: Batch, pairs: Pairs, least: float, labels: IntArray | None = None) -> None:
    """Raise `InputError` if a pair is closer than a multiple of the sum of covalent radii."""
    if not len(pairs.ratios) or pairs.ratios.min() >= least:
        return
    closest = int(pairs.ratios.argmin())
    names = [
        f"{k if labels is None else labels[k]} ({chemical_symbols[batch.numbers[k]]})"
        for k in (pairs.receivers[closest], pairs.senders[closest])
    ]
    raise InputError(
        f"atoms {names[0]} and {names[1]} are only {pairs.distances[closest]:.2g} Å apart: check "
        "that positions and cell are in Å, not nm, and that no atom occurs twice"
    )


def _are_elements(batch: Batch) -> bool:
    """Return True if all atomic numbers are those of elements. The model refuses others."""
    return bool(0 <= batch.numbers.min() <= batch.numbers.max() < len(chemical_symbols))


def _is_open_and_spacious(batch: Batch) -> bool:
    """Return True if a small system in vacuum has no atoms that are too close.

    For such systems, NumPy is much faster than a neighbor list.
    """
    if not _is_open_and_small(batch):
        return False
    radii = TOO_CLOSE * covalent_radii[batch.numbers]
    return bool((_all_distances(batch) >= (radii[:, None] + radii)).all())


def _is_open_and_small(batch: Batch) -> bool:
    return len(batch.numbers) <= SMALL and not batch.boxes[0].pbc.any()


def _all_distances(batch: Batch) -> FloatArray:
    """Return the distances of all pairs, [N, N] in Å; infinity from an atom to itself."""
    points = batch.positions
    distances: FloatArray = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    np.fill_diagonal(distances, np.inf)
    return distances


def unknown_atoms(
    numbers: IntArray,
    uncertainty: FloatArray,
    limit: float,
    labels: IntArray | None = None,
    above: int | None = None,
) -> str:
    """Return a message about the atom with the largest uncertainty, if it is above a limit.

    Parameters
    ----------
    numbers : int64 [N]
        Atomic numbers.
    uncertainty : float [N]
        Expected error of the force on each atom in eV/Å.
    limit : float
        Uncertainty above which an atom is unlike those that the model was made for.
    labels : int [N], optional
        Names of the atoms; their indices by default.
    above : int, optional
        Number of atoms above the limit, if there are others.

    Returns
    -------
    str
        Empty if no atom is above the limit.
    """
    above = int(np.count_nonzero(uncertainty > limit)) if above is None else above
    if not above:
        return ""
    worst = int(np.argmax(uncertainty))
    name = worst if labels is None else labels[worst]
    others = f", and of {above} atoms more than" if above > 1 else ", more than"
    return (
        f"the model expects an error of {uncertainty[worst]:.3g} eV/Å in the force on atom {name} "
        f"({chemical_symbols[numbers[worst]]}){others} the {limit:.3g} eV/Å that are usual, so "
        "that results may be wrong: check the structure, or train the model on ones like it"
    )


class Plausibility:
    """Checks of systems that a front end has not met before.

    Parameters
    ----------
    domain : KnownDomain, optional
        Chemistry that the model was trained for.
    elements : frozenset of int
        Atomic numbers that the model was made for. It refuses systems with other elements, so there
        is no warning.
    limit : float, optional
        Uncertainty in eV/Å above which atoms are unlike those that the model was made for.

    Attributes
    ----------
    has_judged : bool
        True once `judge` has warned, or if the caller does.
    """

    def __init__(
        self, domain: KnownDomain | None, elements: frozenset[int], limit: float | None = None
    ) -> None:
        self._domain, self._elements, self._limit = domain, elements, limit
        self._has_warned = self.has_judged = False
        self._seen: set[int] = set()

    @classmethod
    def of(cls, engine: Engine) -> Plausibility:
        """Return the checks of the systems that an engine computes."""
        return cls(engine.known_domain, engine.elements, engine.uncertainty_limit)

    def mute(self, *, judges: bool = False) -> None:
        """Leave warnings about chemistry, and about results if it judges them, to the caller."""
        self._has_warned = True
        self.has_judged = self.has_judged or judges

    def check(self, batch: Batch) -> None:
        """Refuse atoms of one system that are far too close, and warn once of unknown chemistry.

        Raises
        ------
        InputError
            If atoms are too close.

        Warns
        -----
        UnknownChemistryWarning
            Once, if a system differs from all that the model was trained for.
        """
        check_distances(batch)
        if self._has_warned:
            return
        reason = unknown_chemistry(batch, self._domain, self._elements)
        if reason:
            self._has_warned = True
            warnings.warn(reason, UnknownChemistryWarning, stacklevel=2)

    def judge(self, batch: Batch, prediction: Prediction) -> None:
        """Warn once if a model is less sure of its results for an atom than usual.

        Warns
        -----
        UnknownChemistryWarning
            Once.
        """
        if self.has_judged or self._limit is None or prediction.uncertainty is None:
            return
        known = prediction.uncertainty.cpu().numpy()
        if known.max() > self._limit:
            system = batch.system[known.argmax()]
            atoms = slice(batch.system_ptr[system], batch.system_ptr[system + 1])
            self.has_judged = True
            reason = unknown_atoms(batch.numbers[atoms], known[atoms], self._limit)
            warnings.warn(reason, UnknownChemistryWarning, stacklevel=2)

    def check_new(self, batch: Batch) -> None:
        """Check a system unless one with the same atoms and charge has been checked."""
        key = hash((batch.numbers.tobytes(), batch.charge.tobytes()))
        if key not in self._seen:
            self.check(batch)
            self._seen.add(key)


def unknown_chemistry(
    batch: Batch,
    domain: KnownDomain | None,
    elements: frozenset[int],
    pairs: Pairs | None = None,
) -> str:
    """Return what distinguishes one system from a training set, and what to do; empty if nothing.

    Systems with unknown elements are skipped, as the model refuses them. If pairs are given, they
    must include all bonds.
    """
    if domain is None or not elements.issuperset(batch.numbers.tolist()):
        return ""
    (charge,) = map(int, batch.charge)
    bonds = () if charge else unknown_bonds(batch, domain, pairs=pairs)
    return next(chain(unknown_composition(batch.numbers, charge, domain), bonds), "")


def unknown_composition(numbers: IntArray, charge: int, domain: KnownDomain) -> Iterator[str]:
    """Yield remarks about all atoms of a system and its total charge.

    There are none about charges if the training set has none, as the model refuses them.
    """
    knows_charges = domain.charges != (0,)
    if charge and not knows_charges:
        return
    if charge not in domain.charges:
        yield (
            f"the structure has a total charge of {charge:+d}, and the model learned from those of "
            f"{', '.join(map(str, domain.charges))}: check it"
        )
    electrons = int(numbers.sum()) - charge
    if domain.closed_shells and electrons % 2:
        remedy = (
            "check the total charge, and for missing or additional hydrogen atoms"
            if knows_charges
            else "check for missing or additional hydrogen atoms and charged residues, or take a "
            "model that knows radicals or charges"
        )
        yield (
            f"the structure has {electrons} electrons, an odd number, and the model knows only "
            f"closed shells: {remedy}"
        )
    if not charge and tuple(sorted(numbers.tolist())) in domain.wrong:
        formula = "-".join(chemical_symbols[z] for z in numbers)
        yield (
            f"the model is known to be wrong for {formula} by itself, in the length of its bond "
            "or more: take another model"
        )


def unknown_bonds(
    batch: Batch,
    domain: KnownDomain,
    labels: IntArray | None = None,
    n_own: int | None = None,
    pairs: Pairs | None = None,
) -> Iterator[str]:
    """Yield the bonds of one system that a training set lacks, and what to do.

    Messages refer to atoms by their labels, or by their indices if there are none. Atoms with
    indices of ``n_own`` or more are ghosts. Bonds between ghosts do not count, because ghosts may
    lack neighbors. If pairs are given, they include all bonds.
    """
    if domain.bonds is None:
        return
    if pairs is None:
        pairs = close_pairs(batch, domain.bond_factor)
    is_bond = pairs.ratios < domain.bond_factor
    receivers, senders = pairs.receivers[is_bond], pairs.senders[is_bond]

    def neighbors(atom: int) -> list[str]:
        return sorted(chemical_symbols[z] for z in batch.numbers[senders[receivers == atom]])

    chosen = np.flatnonzero(receivers < (len(batch.numbers) if n_own is None else n_own))
    keys = _bond_keys(batch.numbers, receivers, senders)[chosen].tolist()
    is_known = known_keys(domain)
    for key, bond in zip(keys, chosen.tolist(), strict=True):
        if is_known.get(key):
            continue
        i, j = int(receivers[bond]), int(senders[bond])
        a, b = (chemical_symbols[batch.numbers[k]] for k in (i, j))
        of_a, of_b = neighbors(i), neighbors(j)
        is_known[key] = bond_name(a, of_a, b, of_b) in domain.bonds
        if not is_known[key]:
            names = (i, j) if labels is None else (labels[i], labels[j])
            yield (
                f"the training set of the model has no bond like that of atoms {names[0]} and "
                f"{names[1]}, {a} bonded to {', '.join(of_a)} and {b} bonded to "
                f"{', '.join(of_b)}, so that results may be wrong: check the structure "
                "(PDBFixer adds the hydrogen atoms that PDB files lack), or take another model"
            )


@cache
def known_keys(domain: KnownDomain) -> dict[int, bool]:  # noqa: ARG001 (one dictionary for each)
    """Return the keys of bonds that a training set has, among all keys looked up so far."""
    return {}


def _bond_keys(numbers: IntArray, receivers: IntArray, senders: IntArray) -> NDArray[np.uint64]:
    """Return a number for each bond, equal for bonds whose atoms and neighbors are alike.

    Bonds are grouped by receiver. Sums wrap around.
    """
    of_atoms, of_neighbors = bond_codes(numbers)
    sums = np.zeros(len(senders) + 1, dtype=np.uint64)
    np.cumsum(of_neighbors[senders], out=sums[1:])
    ends = np.searchsorted(receivers, np.arange(len(numbers) + 1))
    return keys_of(of_atoms + np.diff(sums[ends]), receivers, senders)


def bond_codes(numbers: IntArray) -> NDArray[np.uint64]:
    """Return two codes of each atom, one as itself and one as a neighbor, [2, ...]."""
    return CODES[:, numbers]


def keys_of(
    codes: NDArray[np.uint64], receivers: IntArray, senders: IntArray
) -> NDArray[np.uint64]:
    """Return the keys of bonds from the codes of their atoms, each a sum over its neighbors."""
    keys: NDArray[np.uint64] = codes[receivers] * np.uint64(3) + codes[senders]
    return keys


def close_pairs(batch: Batch, factor: float, reach: float = 0.0) -> Pairs:
    """Return the pairs of one system, in both directions, that may be close to each other.

    They include all pairs up to a distance: ``factor`` times the largest sum of covalent radii, or
    ``reach`` in Å if that is more.
    """
    radii = covalent_radii[batch.numbers]
    reach = max(reach, factor * 2 * float(radii.max()))
    if _is_open_and_small(batch):
        table = _all_distances(batch)
        receivers, senders = np.nonzero(table < reach)
        distances = table[receivers, senders]
        check_apart(distances, np.stack([receivers, senders], axis=1))
    else:
        box = batch.boxes[0]
        graph = find_pairs(batch.positions, box, reach)
        cell = torch.from_numpy(box.cell)[None]
        vectors = graph.vectors(torch.from_numpy(batch.positions), cell, None)
        receivers, senders = graph.receivers.numpy(), graph.senders.numpy()
        distances = vectors.norm(dim=1).numpy()
    return Pairs(receivers, senders, distances, distances / (radii[receivers] + radii[senders]))
