"""Hydrogen bonds between molecules and within them, and protons on their way across.

Molecules that touch in random orientations hardly ever bind: among such samples there are none of
the pairs that acids, amides and bases form by two or three hydrogen bonds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from ase.data import atomic_numbers, vdw_radii
from geometry import FloatArray, IntArray, Structure, random_rotation, union

POLAR = [atomic_numbers[symbol] for symbol in ("N", "O", "F", "S", "Cl")]
FULL = {atomic_numbers["N"]: 4, atomic_numbers["O"]: 3}  # bonds that leave no lone pair
SHORTEST, LONGEST = 1.6, 2.4  # Å, of hydrogen to acceptor
CONTACT = 2.8  # Å, of further hydrogen bonds
TRIALS = 40  # orientations
BINDS = 0.7  # share of pairs that take the orientation with the most hydrogen bonds
CLEAR = 0.6  # smallest distance of other atoms, relative to the sum of van der Waals radii
CLOSE, WIDE = 2.3, 2.8  # Å, of donor to acceptor while a proton is between them
BONDED = 0.95  # Å, which a proton keeps from both
NEARBY = 2.6  # Å, of hydrogen to an acceptor of the same molecule


class HydrogenBond(NamedTuple):
    """A hydrogen bond in a structure: the indices of its three atoms."""

    donor: int
    hydrogen: int
    acceptor: int


def donors(structure: Structure) -> list[tuple[int, int]]:
    """Return the polar atoms with hydrogen, each with that hydrogen."""
    z = structure.numbers
    ends = [*structure.bonds, *(bond[::-1] for bond in structure.bonds)]
    return [(d, h) for d, h in ends if z[h] == 1 and z[d] in POLAR]


def acceptors(structure: Structure) -> IntArray:
    """Return the polar atoms that have a lone pair."""
    z = structure.numbers
    ends = np.array(structure.bonds, dtype=int).ravel()
    counts = np.bincount(ends, minlength=len(z))
    free = [z[k] in POLAR and counts[k] < FULL.get(z[k], 9) for k in range(len(z))]
    return np.flatnonzero(free)


def hydrogen_bonded(
    host: Structure, guest: Structure, rng: np.random.Generator
) -> tuple[Structure, HydrogenBond] | None:
    """Place a molecule next to another, so that a hydrogen bond or more join them.

    Returns the union, with the charge of both, and one of its hydrogen bonds; None if there is
    neither donor nor acceptor, or every orientation overlaps.
    """
    first_gives = rng.random() < 0.5
    giving, taking = (host, guest) if first_gives else (guest, host)
    pairs, ends = donors(giving), acceptors(taking)
    if not pairs or not len(ends):
        return None
    d, h = pairs[rng.integers(len(pairs))]
    a = int(ends[rng.integers(len(ends))])
    x = giving.positions
    along = (x[h] - x[d]) / np.linalg.norm(x[h] - x[d])
    shortest = max(SHORTEST, CLEAR * (vdw_radii[1] + vdw_radii[taking.numbers[a]]))
    target = x[h] + rng.uniform(shortest, LONGEST) * along
    arms = taking.positions - taking.positions[a]
    placed = [arms @ random_rotation(rng).T + target for _ in range(TRIALS)]
    placed = [each for each in placed if _is_clear(giving, taking, each, (h, a))]
    if not placed:
        return None
    if rng.random() < BINDS:
        placed.sort(key=lambda each: -_count(giving, taking, each))
    positions = (x, placed[0]) if first_gives else (placed[0], x)
    both = replace(union(host, guest, *positions), charge=host.charge + guest.charge)
    n = len(host.numbers)
    shift_d, shift_a = (0, n) if first_gives else (n, 0)
    return both, HydrogenBond(d + shift_d, h + shift_d, a + shift_a)


def inner_bonds(structure: Structure) -> list[HydrogenBond]:
    """Return the hydrogen bonds within a molecule."""
    x = structure.positions
    return [
        HydrogenBond(d, h, int(a))
        for d, h in donors(structure)
        for a in acceptors(structure)
        if a != d and np.linalg.norm(x[a] - x[h]) < NEARBY
    ]


def with_shared_proton(
    structure: Structure, bond: HydrogenBond, movable: IntArray, rng: np.random.Generator
) -> Structure:
    """Put the proton of a hydrogen bond anywhere between its donor and its acceptor.

    Movable atoms, which may be none, first move along the hydrogen bond until both are as close as
    they are when a proton passes.
    """
    d, h, a = bond
    x = structure.positions.copy()
    gap = np.linalg.norm(x[a] - x[d])
    if len(movable):
        wanted = rng.uniform(CLOSE, WIDE)
        x[movable] += (wanted / gap - 1) * (x[a] - x[d])
        gap = wanted
    share = 0.5 if gap < 2 * BONDED else rng.uniform(BONDED, gap - BONDED) / gap
    x[h] = x[d] + share * (x[a] - x[d])
    return replace(structure, positions=x)


def _is_clear(
    giving: Structure, taking: Structure, placed: FloatArray, but: tuple[int, int]
) -> bool:
    """Return True if all pairs of atoms of two molecules but one are apart."""
    reach = vdw_radii[giving.numbers][:, None] + vdw_radii[taking.numbers]
    is_clear = np.linalg.norm(giving.positions[:, None] - placed, axis=-1) > CLEAR * reach
    is_clear[but] = True
    return bool(is_clear.all())


def _count(giving: Structure, taking: Structure, placed: FloatArray) -> int:
    """Count the hydrogen bonds of both directions between two molecules."""
    x, count = giving.positions, 0
    for hydrogens, ends in (
        (x[[h for _, h in donors(giving)]], placed[acceptors(taking)]),
        (placed[[h for _, h in donors(taking)]], x[acceptors(giving)]),
    ):
        gaps = np.linalg.norm(hydrogens[:, None] - ends, axis=-1)
        count += int((gaps < CONTACT).any(1).sum()) if len(ends) else 0
    return count
