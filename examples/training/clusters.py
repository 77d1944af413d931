"""Clusters: water clusters and droplets, hydrated solutes, and complexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
from ase.build import molecule
from geometry import FloatArray, Structure, attach, centered, random_rotation, union
from molecules import COMPLEXES, HELD_OUT, HYDRATED

LIQUID_VOLUME = 29.9  # Å^3 per water molecule at ambient density

Find = Callable[[str, int], Structure]  # returns a molecule by name and conformer


def waters(rng: np.random.Generator) -> Iterator[Structure]:
    """Yield the water monomer, open clusters and liquid-like droplets."""
    yield water()
    for n in (2, 3, 4, 5, 6, 7, 8, 10, 12):
        for conformer in range(3):
            yield grown_cluster(rng, n, conformer)
    for n in (8, 10, 12, 14, 16, 18, 20):
        for conformer in range(3):
            yield liquid_droplet(rng, n, conformer, squeeze=1.0)
        yield liquid_droplet(rng, n, 0, squeeze=0.92)


def hydrated(rng: np.random.Generator, find: Find) -> Iterator[Structure]:
    """Yield solutes surrounded by a few waters."""
    for solute, counts in HYDRATED.items():
        for n in counts:
            for conformer in range(2):
                cluster = _renamed(find(solute, conformer), f"{solute}+{n}w", "hydrated", conformer)
                for _ in range(n):
                    cluster = attach(rng, cluster, water(), contact=0.72)
                yield cluster


def complexes(rng: np.random.Generator, find: Find) -> Iterator[Structure]:
    """Yield dimers and trimers of small molecules, and cyclic hydrogen-bonded dimers."""
    for names in COMPLEXES:
        for conformer in range(2):
            first = find(names[0], conformer)
            cluster = _renamed(first, "+".join(names), "complex", conformer)
            for name in names[1:]:
                cluster = attach(rng, cluster, find(name, conformer), contact=0.78)
            yield cluster
    for name in ("formic_acid", "acetic_acid", "formamide", "acetamide"):
        yield cyclic_dimer(find(name, 0))


def water(name: str = "water") -> Structure:
    """Build one water molecule."""
    atoms = molecule("H2O")
    bonds = ((0, 1), (0, 2))
    return Structure(name, 0, "water", "train", atoms.numbers, centered(atoms.positions), bonds)


def grown_cluster(rng: np.random.Generator, n: int, conformer: int) -> Structure:
    """Grow an open cluster by adding waters one at a time, at contact distance."""
    cluster = replace(water(f"water{n}"), conformer=conformer)
    for _ in range(n - 1):
        cluster = attach(rng, cluster, water(), contact=0.7)
    return cluster


def liquid_droplet(rng: np.random.Generator, n: int, conformer: int, squeeze: float) -> Structure:
    """Pack waters at random in the sphere that they would fill in the liquid.

    Parameters
    ----------
    rng : Generator
        Random numbers of the packing.
    n, conformer : int
        Number of molecules, and the index of the packing.
    squeeze : float
        Scale of the radius of the sphere; below 1, the droplet is compressed.
    """
    radius = squeeze * (3 * n * LIQUID_VOLUME / (4 * np.pi)) ** (1 / 3)
    centers = _spread_points(rng, n, radius)
    single = water(f"droplet{n}" if squeeze == 1 else f"dense{n}")
    xyz = [single.positions @ random_rotation(rng).T + center for center in centers]
    droplet = replace(single, conformer=conformer)
    for k in range(1, n):
        droplet = union(droplet, single, np.concatenate(xyz[:k]), xyz[k])
    return replace(droplet, wall=radius)


def _spread_points(rng: np.random.Generator, n: int, radius: float) -> FloatArray:
    """Draw ``n`` points in a sphere at least 2.5 Å apart (less if the sphere gets crowded)."""
    points = np.empty((0, 3))
    for attempt in count():
        point = rng.uniform(-radius, radius, 3)
        apart = 2.5 * 0.999 ** (attempt / 10)
        far = np.all(np.linalg.norm(points - point, axis=1) > apart)
        if far and np.linalg.norm(point) < radius:
            points = np.vstack([points, point])
        if len(points) == n:
            break
    return points


def cyclic_dimer(monomer: Structure) -> Structure:
    """Join two acids or amides, related by inversion, with two equal hydrogen bonds."""
    oxygen, donor, hydrogen = _facing_bond(monomer)
    xyz = monomer.positions
    along = xyz[hydrogen] - xyz[donor]
    acceptor = xyz[hydrogen] + 1.8 * along / np.linalg.norm(along)
    image = acceptor + xyz[oxygen] - xyz
    name = f"{monomer.name}_cyclic_dimer"
    return union(_renamed(monomer, name, "complex", 0), monomer, xyz, image)


def _facing_bond(monomer: Structure) -> tuple[int, int, int]:
    """Find the carbonyl oxygen, and the donor and hydrogen of the X-H bond that faces it."""
    numbers = monomer.numbers
    bonds = [b if numbers[b[1]] == 1 else b[::-1] for b in monomer.bonds]
    donors = [(d, h) for d, h in bonds if numbers[h] == 1 and numbers[d] in (7, 8)]
    bonded = [i for bond in monomer.bonds for i in bond]
    oxygen = next(int(i) for i in np.flatnonzero(numbers == 8) if bonded.count(i) == 1)
    gap = [np.linalg.norm(monomer.positions[h] - monomer.positions[oxygen]) for _, h in donors]
    return oxygen, *donors[int(np.argmin(gap))]


def _renamed(s: Structure, name: str, group: str, conformer: int) -> Structure:
    """Rename a molecule to start a cluster, with the cluster's split and without torsions."""
    split = "test_molecule" if name in HELD_OUT else s.split
    return replace(s, name=name, group=group, conformer=conformer, split=split, torsions=())
