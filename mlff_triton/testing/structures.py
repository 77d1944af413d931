"""Random structures for tests and benchmarks, reproducible from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ase import Atoms
from numpy.typing import ArrayLike, NDArray

from mlff_triton.errors import InputError

FloatArray = NDArray[np.float64]

ELEMENTS = ("C", "H", "N", "O")
CRYSTALS: dict[str, tuple[ArrayLike, tuple[bool, bool, bool]]] = {
    # cell vectors up to a common factor, and periodic directions
    "cubic": (np.eye(3), (True, True, True)),
    "triclinic": ([[1.1, 0.0, 0.0], [0.4, 1.0, 0.0], [-0.3, 0.5, 0.9]], (True, True, True)),
    "small": ([[1.1, 0.0, 0.0], [0.4, 1.0, 0.0], [-0.3, 0.5, 0.9]], (True, True, True)),
    "slab": ([[1.0, 0.0, 0.0], [0.3, 1.2, 0.0], [0.0, 0.0, 1.5]], (True, True, False)),
    "rod": ([[1.5, 0.0, 0.0], [0.0, 1.5, 0.0], [0.0, 0.0, 0.8]], (False, False, True)),
}


def random_cluster(
    n_atoms: int,
    elements: Sequence[str] = ELEMENTS,
    seed: int = 0,
    min_distance: float = 1.2,
) -> Atoms:
    """Place atoms at random in vacuum, about as densely as in a liquid.

    Parameters
    ----------
    n_atoms : int
        Number of atoms.
    elements : sequence of str
        Chemical symbols, which occur equally often, in random order.
    seed : int
        Random seed; the same seed always gives the same atoms.
    min_distance : float
        Smallest distance between two atoms in Å.

    Returns
    -------
    ase.Atoms
        The cluster, without a cell.

    Examples
    --------
    >>> len(random_cluster(7))
    7
    """
    rng = np.random.default_rng(seed)
    box = np.eye(3) * np.cbrt(_volume(n_atoms, min_distance))
    positions = _random_points(n_atoms, box, (False, False, False), min_distance, rng)
    return Atoms(_random_symbols(n_atoms, elements, rng), positions)


def random_crystal(
    n_atoms: int,
    kind: str = "triclinic",
    elements: Sequence[str] = ELEMENTS,
    seed: int = 0,
    min_distance: float = 1.2,
) -> Atoms:
    """Place atoms at random in a periodic cell, about as densely as in a liquid.

    Parameters
    ----------
    n_atoms : int
        Number of atoms.
    kind : {"cubic", "triclinic", "small", "slab", "rod"}
        Shape and periodicity of the cell. The ``small`` cell is triclinic and only
        ``1.5 min_distance`` high, far less than a usual cutoff. A ``slab`` is not periodic along
        its third vector, a ``rod`` only along its third.
    elements : sequence of str
        Chemical symbols, which occur equally often, in random order.
    seed : int
        Random seed; the same seed always gives the same atoms.
    min_distance : float
        Smallest distance between two atoms, including periodic images, in Å.

    Returns
    -------
    ase.Atoms
        The crystal.

    Raises
    ------
    InputError
        If the kind is unknown.

    Examples
    --------
    >>> random_crystal(5, "slab").pbc.tolist()
    [True, True, False]
    """
    if kind not in CRYSTALS:
        raise InputError(f"kind={kind!r} is unknown: use one of {', '.join(CRYSTALS)}")
    rows, pbc = CRYSTALS[kind]
    cell = np.array(rows, dtype=np.float64)
    volume = _volume(n_atoms, min_distance)
    if kind == "small":  # the height of a lower triangular cell is its last component
        cell[2, 2] = 1.5 * min_distance
        cell[:2] *= np.sqrt(volume / np.linalg.det(cell))
    else:
        cell *= np.cbrt(volume / np.linalg.det(cell))
    rng = np.random.default_rng(seed)
    positions = _random_points(n_atoms, cell, pbc, min_distance, rng)
    return Atoms(_random_symbols(n_atoms, elements, rng), positions, cell=cell, pbc=pbc)


def water_box(n_molecules: int, seed: int = 0) -> Atoms:
    """Place randomly oriented water molecules on a cubic grid.

    Parameters
    ----------
    n_molecules : int
        Number of molecules, each with its atoms in the order O, H, H. A cube number such as 64 or
        1000 fills the box at 1.0 g/cm³. Otherwise, some sites remain empty.
    seed : int
        Random seed; the same seed always gives the same atoms.

    Returns
    -------
    ase.Atoms
        The molecules, in a cubic cell that is periodic in all directions.

    Examples
    --------
    >>> water_box(8).get_chemical_formula()
    'H16O8'
    """
    spacing = 3.104  # Å; one molecule per 29.9 Å³
    n_side = next(n for n in range(n_molecules + 1) if n**3 >= n_molecules)
    sites = spacing * np.array(list(np.ndindex(n_side, n_side, n_side)))[:n_molecules]
    bond, half_angle = 0.9572, np.radians(104.52 / 2)
    x, z = bond * np.sin(half_angle), bond * np.cos(half_angle)
    molecule = np.array([[0.0, 0.0, 0.0], [x, 0.0, z], [-x, 0.0, z]])
    rng = np.random.default_rng(seed)
    positions = np.concatenate([site + molecule @ random_rotation(rng) for site in sites])
    return Atoms("OHH" * n_molecules, positions, cell=[n_side * spacing] * 3, pbc=True)


def random_rotation(rng: np.random.Generator) -> FloatArray:
    """Draw a uniformly distributed proper rotation.

    Parameters
    ----------
    rng : numpy.random.Generator
        Random stream.

    Returns
    -------
    float64 [3, 3]
    """
    rotation, triangle = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation *= np.sign(np.diag(triangle))
    return np.asarray(rotation * np.linalg.det(rotation))


def _volume(n_atoms: int, min_distance: float) -> float:
    """Return a volume in Å³ large enough for this many random points this far apart."""
    return 4.0 * n_atoms * min_distance**3


def _random_points(
    n_atoms: int,
    cell: FloatArray,
    pbc: Sequence[bool],
    min_distance: float,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw points at least ``min_distance`` apart in a cell that is higher than this distance.

    Only adjacent periodic images can then be closer.
    """
    steps = [3 if periodic else 1 for periodic in pbc]
    images = (np.array(list(np.ndindex(*steps))) - np.array(steps) // 2) @ cell
    points = np.empty((0, 3))
    while len(points) < n_atoms:
        point = rng.random(3) @ cell
        distances = np.linalg.norm(points[:, None] + images - point, axis=-1)
        if (distances >= min_distance).all():
            points = np.vstack([points, point])
    return points


def _random_symbols(n_atoms: int, elements: Sequence[str], rng: np.random.Generator) -> list[str]:
    return [elements[i % len(elements)] for i in rng.permutation(n_atoms)]
