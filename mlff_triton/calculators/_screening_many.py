"""Fast search for the small molecules among many that need no closer look.

Screening one molecule takes a dozen NumPy calls, and screening many with equally many atoms takes
no more. All other molecules are screened one by one, so this file decides nothing about them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from numpy.typing import NDArray

from mlff_triton.calculators._plausibility import SMALL, bond_codes, keys_of, known_keys
from mlff_triton.calculators._total_charge import CHARGE, noted_charge
from mlff_triton.engine.batch import IntArray
from mlff_triton.model.known_domain import KnownDomain
from mlff_triton.neighbors.box import FloatArray

HALF_A_BOND = 0.5
"""Smallest distance in a molecule, as a multiple of the sum of covalent radii."""
BONDED = 1.3
"""Largest distance of bonded atoms, as a multiple of the sum of covalent radii."""
PAIRS = 1 << 18  # at a time


def plain_molecules(
    structures: Sequence[Atoms], domain: KnownDomain | None, elements: frozenset[int]
) -> list[bool]:
    """Return True for each structure on which `Screening.look` has nothing to remark.

    Such a structure is a neutral molecule of at most 64 known atoms in vacuum, all bonded and none
    too close, with bonds that were seen before. False decides nothing.
    """
    is_plain = [False] * len(structures)
    for some in _alike(structures, elements):
        numbers = np.stack([structures[k].numbers for k in some])
        positions = np.stack([structures[k].positions for k in some])
        for k, found in zip(some, _are_plain(numbers, positions, domain).tolist(), strict=True):
            is_plain[k] = found
    return is_plain


def _alike(structures: Sequence[Atoms], elements: frozenset[int]) -> Iterator[list[int]]:
    """Yield the indices of structures with equally many atoms, not too many at a time."""
    groups: dict[int, list[int]] = defaultdict(list)
    for k, atoms in enumerate(structures):
        charge = noted_charge(atoms).get(CHARGE, 0)
        is_neutral = isinstance(charge, int | np.integer) and charge == 0
        is_open = is_neutral and 0 < len(atoms) <= SMALL and not atoms.pbc.any()
        if is_open and elements.issuperset(atoms.numbers.tolist()):
            groups[len(atoms)].append(k)
    for n_atoms, group in groups.items():
        step = PAIRS // n_atoms**2
        yield from (group[start : start + step] for start in range(0, len(group), step))


def _are_plain(
    numbers: IntArray, positions: FloatArray, domain: KnownDomain | None
) -> NDArray[np.bool_]:
    """Return which molecules are plain, bool [M], from arrays [M, N] and [M, N, 3]."""
    n_atoms, radii = numbers.shape[1], covalent_radii[numbers]
    distances = np.sqrt(((positions[:, :, None] - positions[:, None]) ** 2).sum(axis=3))
    distances[:, range(n_atoms), range(n_atoms)] = np.inf
    ratios = distances / (radii[:, :, None] + radii[:, None])
    nearest = ratios.min(axis=2)
    is_plain: NDArray[np.bool_] = (nearest >= HALF_A_BOND).all(axis=1)  # False for NaN
    if n_atoms > 1:
        is_plain &= (nearest < BONDED).all(axis=1)
    for wrong in domain.wrong if domain is not None else ():
        if len(wrong) == n_atoms:
            is_plain &= ~(np.sort(numbers, axis=1) == wrong).all(axis=1)
    if domain is None:
        return is_plain
    if domain.closed_shells:
        is_plain &= numbers.sum(axis=1) % 2 == 0
    if domain.bonds is None:
        return is_plain
    is_bond = ratios < domain.bond_factor
    of_atoms, of_neighbors = bond_codes(numbers)
    codes = of_atoms + (is_bond * of_neighbors[:, None]).sum(axis=2, dtype=np.uint64)
    molecules, receivers, senders = np.nonzero(is_bond)
    first = molecules * n_atoms
    keys = keys_of(codes.ravel(), first + receivers, first + senders)
    known = [key for key, is_known in known_keys(domain).items() if is_known]
    is_met = np.isin(keys, np.array(known, dtype=np.uint64))
    is_plain[molecules[~is_met]] = False
    return is_plain
