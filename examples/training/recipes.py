"""Recipes that turn conformers into the geometries that a teacher labels.

Each recipe yields geometries of one conformer: rattled, turned, stretched, next to others, bound to
them, and inside the wall of `wall.py`. All random numbers follow from its name, so a recipe repeats
itself.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from ase.data import chemical_symbols, covalent_radii, vdw_radii
from ase.units import kB
from chemistry import S22
from geometry import (
    BoolArray,
    FloatArray,
    IntArray,
    Structure,
    attach,
    centered,
    moving_side,
    rotated,
)
from hydrogen_bonds import HydrogenBond, hydrogen_bonded, inner_bonds, with_shared_proton
from wall import wall_radius

COLD, HOT = 300.0, 1000.0  # K
STIFFNESS = (30.0, 5.0, 0.6)  # eV/Å², of springs between atoms one, two and three bonds apart
SOFTEST = 1.5  # eV/Å², so that soft modes stay within the reach of linear displacements
RIGID = 1e6  # eV/Å², of motions of the whole molecule, which vibrations leave out
CONTACT = 0.8  # distance of molecules in contact, relative to the sum of van der Waals radii
NEAR, FAR = 0.8, 3.0  # relative to contact
OVERLAP = 0.55  # smallest relative distance of atoms more than three bonds apart
DEEPEST = 0.6  # smallest distance inside the wall, relative to its radius
ATOM_PAIR = "pair"  # group of two atoms by themselves, which only the wall is about
PAIR_SAMPLES, PAIR_DEEPEST, PAIR_HIGHEST = 40, 0.45, 0.92  # of the wall, which bonds are near
MAX_ATOMS = 64


@dataclass(frozen=True)
class Sample:
    """A geometry to label.

    Attributes
    ----------
    recipe : str
        Name of the recipe that made it.
    structure : Structure
        Its atoms, positions, total charge and split.
    pair : tuple of two int
        Atoms inside the wall, or nothing.
    side : bool [N]
        Atoms that move with the second atom of the pair.
    steps : int
        Steps that the teacher moves the atoms down its energy before it labels them.
    """

    recipe: str
    structure: Structure
    pair: tuple[int, ...]
    side: BoolArray
    steps: int = 0


@dataclass(frozen=True)
class Partners:
    """Molecules to place next to others, by split; those of one split meet only each other.

    Attributes
    ----------
    solvents : list of Structure
        Solvents, neutral and of the training set, which surround molecules of all splits.
    neutral, ions : dict of list of Structure
        Small molecules and ions by split.
    """

    solvents: list[Structure]
    neutral: dict[str, list[Structure]]
    ions: dict[str, list[Structure]]

    @classmethod
    def among(cls, structures: list[Structure]) -> Partners:
        """Choose small molecules and solvents among all conformers."""
        small = [s for s in structures if len(s.numbers) <= SMALL and s.group != "held_out"]
        splits = {s.split for s in structures}
        train = [s for s in small if s.split == "train"]
        return cls(
            solvents=[s for s in train if s.name in SOLVENTS],
            neutral={k: [s for s in small if s.split == k and not s.charge] for k in splits},
            ions={k: [s for s in small if s.split == k and s.group == "ion"] for k in splits},
        )


SMALL = 14  # atoms
SOLVENTS = ("water", "methanol", "acetonitrile", "dmso", "chloroform", "acetone", "ammonia")
WATER_SHARE = 0.6  # of the solvated clusters
ALIKE = 0.3  # share of hydrogen-bonded pairs of one molecule
INNER = 0.5  # share of protons that move within a molecule, if it has hydrogen bonds


def samples(start: Structure, partners: Partners) -> Iterator[Sample]:
    """Yield the samples of all recipes for one conformer."""
    recipes = PAIR_RECIPES if start.group == ATOM_PAIR else RECIPES
    for name, (recipe, count, most_steps) in recipes.items():
        rng = np.random.default_rng(zlib.crc32(f"{name} {start.name} {start.conformer}".encode()))
        for _ in range(count):
            made = recipe(start, partners, rng)
            if made is not None:
                yield Sample(name, *made, int(rng.integers(most_steps + 1)) if most_steps else 0)


Made = tuple[Structure, tuple[int, ...], BoolArray]
Recipe = Callable[[Structure, Partners, np.random.Generator], Made | None]


def relaxed(start: Structure, _: Partners, __: np.random.Generator) -> Made | None:
    """Return the conformer as it is."""
    return outside_wall(start)


def thermal(start: Structure, _: Partners, rng: np.random.Generator) -> Made | None:
    """Displace the atoms as vibrations do between 300 and 1,000 K."""
    return outside_wall(shaken(start, rng, HOT))


def turned(start: Structure, _: Partners, rng: np.random.Generator) -> Made | None:
    """Rotate about one bond by any angle, and shake the atoms a little."""
    if not start.torsions:
        return None
    j, k = start.torsions[rng.integers(len(start.torsions))][1:3]
    angle = rng.uniform(0, 2 * math.pi)
    x = rotated(start.positions, moving_side(start, j, k), j, k, angle)
    return outside_wall(shaken(replace(start, positions=x), rng, COLD))


def stretched(start: Structure, _: Partners, rng: np.random.Generator) -> Made | None:
    """Stretch or compress one bond, outside the wall."""
    bond = open_bond(start, rng)
    if bond is None:
        return None
    j, k, side = bond
    x = start.positions.copy()
    x[side] += (rng.uniform(0.75, 1.7) - 1) * (x[k] - x[j])
    return outside_wall(shaken(replace(start, positions=x), rng, COLD))


def dimer(start: Structure, partners: Partners, rng: np.random.Generator) -> Made | None:
    """Place another molecule at 0.8 to 3 times the distance of contact, mostly near it."""
    guest = partner(start, partners, rng)
    if guest is None:
        return None
    reach = rng.uniform(NEAR, 1.4) if rng.random() < 0.7 else rng.uniform(1.4, FAR)
    host, guest = shaken(start, rng, COLD), shaken(guest, rng, COLD)
    return outside_wall(joined(host, guest, rng, CONTACT * reach))


def solvated(start: Structure, partners: Partners, rng: np.random.Generator) -> Made | None:
    """Surround a molecule by one to twelve molecules of a solvent."""
    if not partners.solvents:
        return None
    water = [each for each in partners.solvents if each.name == "water"]
    pool = water if water and rng.random() < WATER_SHARE else partners.solvents
    solvent = pool[rng.integers(len(pool))]
    cluster = shaken(start, rng, COLD)
    for _ in range(rng.integers(1, 13)):
        if len(cluster.numbers) + len(solvent.numbers) > MAX_ATOMS:
            break
        guest = shaken(solvent, rng, COLD)
        cluster = joined(cluster, guest, rng, CONTACT * rng.uniform(NEAR, 1.2))
    if len(cluster.numbers) == len(start.numbers) or is_s22(start, cluster, solvent):
        return None
    return outside_wall(cluster)


def collided(start: Structure, partners: Partners, rng: np.random.Generator) -> Made | None:
    """Push a small molecule into another, until the closest pair is inside the wall."""
    guest = partner(start, partners, rng)
    if guest is None:
        return None
    both = joined(start, guest, rng, CONTACT)
    side = np.arange(len(both.numbers)) >= len(start.numbers)
    gaps = np.linalg.norm(both.positions[~side][:, None] - both.positions[side], axis=-1)
    j, k = np.unravel_index(np.argmin(gaps / reach_of(both)[np.ix_(~side, side)]), gaps.shape)
    return inside_wall(both, int(j), int(k) + len(start.numbers), side, rng)


def compressed(start: Structure, _: Partners, rng: np.random.Generator) -> Made | None:
    """Compress one bond until it is inside the wall."""
    bond = open_bond(start, rng)
    if bond is None:
        return None
    j, k, atoms = bond
    side = np.isin(np.arange(len(start.numbers)), atoms)
    return inside_wall(start, j, k, side, rng)


def bound(start: Structure, partners: Partners, rng: np.random.Generator) -> Made | None:
    """Join a molecule to another, perhaps of its own kind, by hydrogen bonds."""
    found = hydrogen_bonded_pair(start, partners, rng)
    return None if found is None else outside_wall(found[0])


def transferred(start: Structure, partners: Partners, rng: np.random.Generator) -> Made | None:
    """Move the proton of a hydrogen bond, within a molecule or between two, to its acceptor."""
    inner = inner_bonds(start)
    if inner and rng.random() < INNER:
        made, bond = shaken(start, rng, COLD), inner[rng.integers(len(inner))]
        movable = np.zeros(0, dtype=np.int64)
    else:
        found = hydrogen_bonded_pair(start, partners, rng)
        if found is None:
            return None
        made, bond = found
        is_guest = np.arange(len(made.numbers)) >= len(start.numbers)
        movable = np.flatnonzero(is_guest == is_guest[bond.acceptor])
    made = with_shared_proton(made, bond, movable, rng)
    return outside_wall(made, (bond.hydrogen, bond.acceptor))


RECIPES: dict[str, tuple[Recipe, int, int]] = {
    "relaxed": (relaxed, 1, 0),
    "thermal": (thermal, 8, 0),
    "turned": (turned, 3, 0),
    "stretched": (stretched, 2, 0),
    "dimer": (dimer, 4, 0),
    "solvated": (solvated, 2, 0),
    "collided": (collided, 1, 0),
    "compressed": (compressed, 1, 0),
    "bound": (bound, 2, 40),
    "transferred": (transferred, 1, 20),
}
"""Recipes by name, the number of samples that each tries to make of a conformer, and the largest
number of steps that a teacher then moves them down its energy."""

PAIR_RECIPES: dict[str, tuple[Recipe, int, int]] = {"compressed": (compressed, PAIR_SAMPLES, 0)}
"""The recipe for atom pairs."""


def atom_pairs(structures: list[Structure]) -> list[Structure]:
    """Return two atoms of every pair of the elements of some structures, at contact."""
    elements = np.unique(np.concatenate([s.numbers for s in structures])).tolist()
    return [
        Structure(
            name=f"{chemical_symbols[a]}-{chemical_symbols[b]}",
            conformer=0,
            group=ATOM_PAIR,
            split="train",
            numbers=np.array([a, b]),
            positions=np.array([[0.0, 0, 0], [covalent_radii[a] + covalent_radii[b], 0, 0]]),
            bonds=((0, 1),),
        )
        for a, b in itertools.combinations_with_replacement(elements, 2)
    ]


def shaken(start: Structure, rng: np.random.Generator, hottest: float) -> Structure:
    """Displace the atoms along the modes of springs at up to a temperature in K.

    Springs hold atoms that are up to three bonds apart. Each mode of stiffness k has the variance
    of thermal motion, kB T / k.
    """
    n = len(start.numbers)
    if n == 1:
        return start
    x, apart = start.positions, bonds_apart(start)
    along = x[:, None] - x + np.eye(n)[:, :, None]
    along /= np.linalg.norm(along, axis=-1, keepdims=True)
    spring = np.array([0, *STIFFNESS, 0])[apart]
    blocks = -spring[:, :, None, None] * along[..., :, None] * along[..., None, :]
    blocks[np.arange(n), np.arange(n)] = -blocks.sum(1)
    hessian = blocks.transpose(0, 2, 1, 3).reshape(3 * n, 3 * n)
    whole = rigid_motions(x)
    stiffness, modes = np.linalg.eigh(hessian + RIGID * whole @ whole.T)
    temperature = rng.uniform(COLD, hottest)
    spread = np.sqrt(kB * temperature / np.maximum(stiffness, SOFTEST))
    moved = x + (modes @ (spread * rng.normal(size=3 * n))).reshape(n, 3)
    return replace(start, positions=moved)


def rigid_motions(x: FloatArray) -> FloatArray:
    """Return an orthonormal basis of translations and rotations, five or six columns [3 N, ...]."""
    turns = np.cross(np.eye(3)[:, None], centered(x)).reshape(3, -1)
    shifts = np.tile(np.eye(3), len(x))
    basis, sizes, _ = np.linalg.svd(np.concatenate([turns, shifts]).T, full_matrices=False)
    return np.asarray(basis[:, sizes > 1e-6 * sizes[0]])


def bonds_apart(structure: Structure) -> IntArray:
    """Return the number of bonds between the atoms of each pair, 4 standing for more than three."""
    n = len(structure.numbers)
    adjacent = np.eye(n, dtype=bool)
    i, j = np.array(structure.bonds, dtype=int).reshape(-1, 2).T
    adjacent[i, j] = adjacent[j, i] = True
    apart, reached = np.full((n, n), 4), np.eye(n, dtype=bool)
    for steps in range(4):
        apart[reached & (apart == 4)] = steps
        reached = reached @ adjacent
    return apart


def open_bond(start: Structure, rng: np.random.Generator) -> tuple[int, int, IntArray] | None:
    """Choose a bond outside of rings, and return it with the atoms on its second side."""
    sides = [(j, k, moving_side(start, j, k)) for j, k in start.bonds]
    found = [bond for bond in sides if bond[2].size]
    return found[rng.integers(len(found))] if found else None


def partner(start: Structure, partners: Partners, rng: np.random.Generator) -> Structure | None:
    """Choose a molecule of the same split: neutral for a neutral one, or else often an ion."""
    charged = start.charge and rng.random() < 0.5
    pool = (partners.ions if charged else partners.neutral)[start.split]
    fits = len(pool) > 0 and len(start.numbers) + SMALL <= MAX_ATOMS
    guest = pool[rng.integers(len(pool))] if fits else None
    return None if guest is None or frozenset((start.name, guest.name)) in S22 else guest


def hydrogen_bonded_pair(
    start: Structure, partners: Partners, rng: np.random.Generator
) -> tuple[Structure, HydrogenBond] | None:
    """Join a molecule to another, perhaps of its own kind, by hydrogen bonds."""
    guest = partner(start, partners, rng)
    if rng.random() < ALIKE and not start.charge and 2 * len(start.numbers) <= MAX_ATOMS:
        guest = None if frozenset((start.name,)) in S22 else start
    if guest is None:
        return None
    return hydrogen_bonded(shaken(start, rng, COLD), shaken(guest, rng, COLD), rng)


def is_s22(start: Structure, cluster: Structure, solvent: Structure) -> bool:
    """Return True if a cluster is a dimer of S22."""
    is_dimer = len(cluster.numbers) == len(start.numbers) + len(solvent.numbers)
    return is_dimer and frozenset((start.name, solvent.name)) in S22


def joined(
    host: Structure, guest: Structure, rng: np.random.Generator, contact: float
) -> Structure:
    """Place a molecule next to another, and add their charges."""
    both = attach(rng, host, guest, contact)
    return replace(both, charge=host.charge + guest.charge)


def outside_wall(made: Structure, near: tuple[int, ...] = ()) -> Made | None:
    """Return a sample without a pair, or None if atoms overlap or a pair is inside the wall.

    Two atoms may be near each other.
    """
    if is_clear(made, np.array(near, dtype=int), others_apart=True):
        return made, (), np.zeros(len(made.numbers), dtype=bool)
    return None


def inside_wall(
    start: Structure, j: int, k: int, side: BoolArray, rng: np.random.Generator
) -> Made | None:
    """Move the side of atom k to a random distance inside the wall of the pair.

    All other pairs must stay outside their walls, since labels are known for one pair at a time.
    """
    x = start.positions.copy()
    along = x[k] - x[j]
    radius = wall_radius(start.numbers[j], start.numbers[k])
    is_pair = start.group == ATOM_PAIR
    share = rng.uniform(PAIR_DEEPEST, PAIR_HIGHEST) if is_pair else rng.uniform(DEEPEST, 1)
    x[side] += along * (share * radius / np.linalg.norm(along) - 1)
    made = replace(start, positions=centered(x))
    is_valid = is_clear(made, np.array([j, k]), others_apart=False)
    return (made, (j, k), side) if is_valid else None


def is_clear(made: Structure, pair: IntArray, *, others_apart: bool) -> bool:
    """Return True if all atoms but a pair are outside their walls, or even farther apart."""
    gaps = np.linalg.norm(made.positions[:, None] - made.positions, axis=-1)
    z = made.numbers
    limit = wall_radius(z[:, None], z)
    if others_apart:
        limit = np.where(bonds_apart(made) > 3, np.maximum(limit, OVERLAP * reach_of(made)), limit)
    ignored = np.eye(len(z), dtype=bool)
    ignored[np.ix_(pair, pair)] = True
    return bool((gaps > limit)[~ignored].all())


def reach_of(made: Structure) -> FloatArray:
    """Return the sums of van der Waals radii of all pairs in Å."""
    radii = vdw_radii[made.numbers]
    return np.asarray(radii[:, None] + radii)
