"""Molecules as atoms and bonds, and operations on their geometries."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from ase.data import vdw_radii
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Structure:
    """One start geometry, with the topology that the sampler needs.

    Attributes
    ----------
    name, conformer : str, int
        Name of the molecule, and index of this conformer.
    group : str
        Family of the molecule: md17, peptide, chain, fragment, water, hydrated or complex.
    split : str
        ``train``, or ``test_molecule`` if the molecule is never used in training.
    numbers : int [N]
        Atomic numbers.
    positions : float64 [N, 3]
        Positions in Å.
    bonds : tuple of pairs
        Bonded atoms.
    torsions : tuple of quadruples
        Four atoms per rotatable bond.
    wall : float
        Radius in Å of the sphere that confines a cluster during sampling; 0 for no wall.
    charge : int
        Total charge in elementary charges.
    """

    name: str
    conformer: int
    group: str
    split: str
    numbers: IntArray
    positions: FloatArray
    bonds: tuple[tuple[int, ...], ...]
    torsions: tuple[tuple[int, ...], ...] = ()
    wall: float = 0.0
    charge: int = 0


def attach(
    rng: np.random.Generator, host: Structure, guest: Structure, contact: float
) -> Structure:
    """Place one molecule next to another, on a random side and in a random orientation.

    Parameters
    ----------
    rng : Generator
        Random numbers of the direction and the orientation.
    host, guest : Structure
        The two molecules or clusters.
    contact : float
        Smallest distance between their atoms, in units of the sum of van der Waals radii.

    Returns
    -------
    Structure
        The union, with the name, group and split of ``host``.
    """
    direction = rng.normal(size=3)
    direction = direction / np.linalg.norm(direction)
    fixed = centered(host.positions)
    moved = centered(guest.positions) @ random_rotation(rng).T
    reach = contact * (vdw_radii[host.numbers][:, None] + vdw_radii[guest.numbers])
    return union(host, guest, fixed, moved + _touching_shift(fixed, moved, reach, direction))


def _touching_shift(
    host: FloatArray, guest: FloatArray, reach: FloatArray, direction: FloatArray
) -> FloatArray:
    """Return the shift of ``guest`` along ``direction`` at which the first pair touches.

    A pair touches where |offset + t direction| = reach. The largest such t of all pairs is the
    first contact of a guest that approaches from infinity.
    """
    offset = guest[None, :, :] - host[:, None, :]
    along = offset @ direction
    discriminant = along**2 - (offset**2).sum(-1) + reach**2
    touching = discriminant >= 0
    if not touching.any():
        return np.zeros(3)
    return np.asarray(direction * (np.sqrt(discriminant[touching]) - along[touching]).max())


def union(
    host: Structure, guest: Structure, host_xyz: FloatArray, guest_xyz: FloatArray
) -> Structure:
    """Join two structures at the given positions, with a wall around both."""
    n = len(host.numbers)
    positions = centered(np.concatenate([host_xyz, guest_xyz]))
    return replace(
        host,
        numbers=np.concatenate([host.numbers, guest.numbers]),
        positions=positions,
        bonds=host.bonds + tuple((i + n, j + n) for i, j in guest.bonds),
        wall=float(np.linalg.norm(positions, axis=1).max()) + 1.0,
    )


def centered(x: FloatArray) -> FloatArray:
    """Move the centroid to the origin."""
    return np.asarray(x - x.mean(0))


def jittered(x: FloatArray, sigma: float, rng: np.random.Generator) -> FloatArray:
    """Add Gaussian noise to every coordinate."""
    return x + rng.normal(scale=sigma, size=x.shape)


def random_rotation(rng: np.random.Generator) -> FloatArray:
    """Draw a uniformly distributed proper rotation matrix."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return np.asarray(q * np.linalg.det(q))


def rotated(x: FloatArray, group: IntArray, j: int, k: int, angle: float) -> FloatArray:
    """Rotate the atoms of ``group`` about the axis j-k, by Rodrigues' formula."""
    axis = (x[k] - x[j]) / np.linalg.norm(x[k] - x[j])
    arm = x[group] - x[k]
    turned = (
        arm * math.cos(angle)
        + np.cross(axis, arm) * math.sin(angle)
        + np.outer(arm @ axis, axis) * (1 - math.cos(angle))
    )
    result = x.copy()
    result[group] = x[k] + turned
    return result


def moving_side(structure: Structure, j: int, k: int) -> IntArray:
    """Return the atoms on the side of ``k`` if the bond j-k is cut; empty for a bond in a ring."""
    side, edge = {k}, [k]
    while edge:
        atom = edge.pop()
        for a, b in structure.bonds:
            other = b if a == atom else a if b == atom else atom
            if other not in side and (atom, other) != (k, j):
                side.add(other)
                edge.append(other)
    return np.array([] if j in side else sorted(side), dtype=np.int64)


def bond_lengths(x: FloatArray, structure: Structure) -> FloatArray:
    """Return the lengths in Å of the structure's bonds at the positions ``x``."""
    i, j = np.array(structure.bonds).T
    return np.asarray(np.linalg.norm(x[i] - x[j], axis=1))


def within_three_bonds(structure: Structure) -> BoolArray:
    """Return the mask of atom pairs that are at most three bonds apart."""
    adjacent = np.eye(len(structure.numbers), dtype=int)
    i, j = np.array(structure.bonds).T
    adjacent[i, j] = adjacent[j, i] = 1
    return np.linalg.matrix_power(adjacent, 3) > 0
