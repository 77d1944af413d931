"""Densities of ice, urea and water, and the structure of water, beside published values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from ase import Atoms
from ase.neighborlist import neighbor_list
from ase.spacegroup import crystal
from comparison import Check, Finding, Gap, Methods, Result
from geometry import FloatArray, IntArray
from simulations import read_frames, read_logs, recorded, simulate, steps_of

from mlff_triton.dynamics import Settings, Stage
from mlff_triton.statics import relax
from mlff_triton.testing import water_box
from mlff_triton.units import AVOGADRO

U_PER_A3 = 1e24 / AVOGADRO  # in g/cm³
# K. Röttger et al., Acta Cryst. B 1994, 50, 644: lattice of ice Ih at 10 K
ICE, ICE_DENSITY = (4.497, 4.497, 7.321, 90, 90, 120), 0.93  # Å and degrees; g/cm³
ICE_CELLS = (2, 2, 2)
HYDROGEN_BOND = 3.2  # Å, farther apart than oxygen atoms that share one, and closer than others
OH = 0.98  # Å
# S. Swaminathan, B. Craven and R. McMullan, Acta Cryst. B 1984, 40, 300: urea at 12 K
UREA, UREA_DENSITY = (5.565, 5.565, 4.684, 90, 90, 90), 1.37  # Å and degrees; g/cm³
UREA_SITES = {
    "C": [(0.0, 0.5, 0.3260)],
    "O": [(0.0, 0.5, 0.5953)],
    "N": [(0.1459, 0.6459, 0.1766)],
    "H": [(0.2575, 0.7575, 0.2827), (0.1441, 0.6441, -0.0380)],
}
FMAX, RELAXATION = 0.02, 1000  # eV/Å, and steps
WATER_DENSITY = 1.0  # g/cm³; within 0.05
# L. B. Skinner et al., J. Chem. Phys. 2013, 138, 074506: maximum of g(r) of O-O at 295 K
PEAK, HEIGHT = 2.80, 2.57  # Å
AROUND = (2.2, 3.6)  # Å, of the maximum
BIN, FITTED = 0.02, 0.06  # Å, and how far from the highest bin a parabola is fitted
EQUILIBRATION = 0.25  # of the time at constant pressure


def crystals(methods: Methods) -> Iterator[Result]:
    """Yield densities of relaxed crystals as a share of the published ones."""
    for name, build, published in (("ice Ih", ice, ICE_DENSITY), ("urea", urea, UREA_DENSITY)):
        atoms = build()
        if not methods.knows(name, atoms):
            continue
        steps = relax(atoms, methods.simulated_in_cells, fmax=FMAX, steps=RELAXATION, cell=True)
        (last,) = deque(steps, maxlen=1)
        if not last.is_converged:
            reason = f"{name} is not relaxed after {last.number} steps"
            yield Gap("crystals", reason, is_missed=True)
            continue
        share = 100 * density(atoms, atoms.get_volume()) / published
        yield Finding("crystals", f"density of {name}, of {published} g/cm³", "%", share, 100.0)


def water(methods: Methods) -> Iterator[Result]:
    """Yield density and structure of water at 300 K and 1 bar."""
    box, folder = water_box(methods.sizes.waters), methods.sizes.runs / "water"
    if not methods.knows("water", box):
        return
    steps = steps_of(methods.sizes.liquid_picoseconds)
    stages = Stage("nvt", max(1, steps // 10)), Stage("npt", steps)
    settings = Settings(stages, temperature=300.0, pressure=1.0, minimize=True, **recorded(steps))
    simulate([box], methods.simulated_in_cells, settings, folder)
    last = settings.spans[-1]
    start = last.start + round(EQUILIBRATION * steps)
    (log,) = read_logs(folder, 1, "volume_A3", last.label)
    volumes = log[log[:, 0] > settings.time(start), 1]
    found = density(box, volumes.mean())
    yield Finding(
        "water, density", f"{methods.sizes.waters} molecules", "g/cm³", found, WATER_DENSITY
    )
    (frames,) = read_frames(folder, settings, 1)
    position, height = peak(each for each in frames if each.info["step"] > start)
    yield Finding("water, O-O distance", "maximum of g(r)", "Å", position, PEAK)
    yield Finding("water, O-O peak", "height of g(r)", "", height, HEIGHT)


CHECKS: tuple[Check, ...] = (crystals, water)


def density(atoms: Atoms, volume: float) -> float:
    """Return the density in g/cm³ of atoms in a volume in Å³."""
    return float(atoms.get_masses().sum() / volume * U_PER_A3)


def urea() -> Atoms:
    """Return the cell of urea, of two molecules."""
    symbols = [symbol for symbol, sites in UREA_SITES.items() for _ in sites]
    sites = [site for each in UREA_SITES.values() for site in each]
    return plain(crystal(symbols, sites, spacegroup=113, cellpar=UREA))


def ice() -> Atoms:
    """Return 32 molecules of ice Ih, with hydrogen atoms at random and hardly any dipole.

    Each molecule gives two of its four hydrogen bonds, as J. D. Bernal and R. H. Fowler found
    (J. Chem. Phys. 1933, 1, 515).
    """
    oxygens = crystal("O", [(1 / 3, 2 / 3, 0.062)], spacegroup=194, cellpar=ICE)
    oxygens = plain(oxygens * ICE_CELLS)
    i, j, vectors = neighbor_list("ijD", oxygens, HYDROGEN_BOND)
    directions = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    orders = (random_donors(i, j, seed) for seed in range(100))
    donated = min(orders, key=lambda bonds: np.linalg.norm(directions[bonds].sum(axis=0)))
    hydrogens = oxygens.positions[i[donated]] + OH * directions[donated]
    return oxygens + Atoms("H" * len(hydrogens), hydrogens)


def random_donors(i: IntArray, j: IntArray, seed: int) -> IntArray:
    """Choose a direction of each bond, so that as many leave each atom as arrive there.

    Random walks along bonds that have no direction yet, each of which ends where it began, give
    them theirs.

    Parameters
    ----------
    i, j : int [E]
        Atoms of directed bonds, each of which is listed in both directions. The number of bonds of
        each atom is even.
    seed : int
        Seed of the walks.

    Returns
    -------
    int [E / 2]
        Indices of the directed bonds that were walked along.
    """
    rng = np.random.default_rng(seed)
    left = np.ones(len(i), bool)
    walked = []
    while left.any():
        atom = i[rng.choice(np.flatnonzero(left))]
        while (onward := np.flatnonzero(left & (i == atom))).size:
            bond = rng.choice(onward)
            left[bond] = left[(i == j[bond]) & (j == i[bond])] = False
            walked.append(bond)
            atom = j[bond]
    return np.array(walked)


def plain(atoms: Atoms) -> Atoms:
    """Return only elements, positions and cell of a crystal."""
    return Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=True)


def peak(frames: Iterator[Atoms]) -> tuple[float, float]:
    """Return position in Å and height of the first maximum of g(r) of oxygen atoms in cells."""
    edges = np.arange(*AROUND, BIN)
    middle = (edges[1:] + edges[:-1]) / 2
    found = [_pair_distribution(frame[frame.numbers == 8], edges) for frame in frames]
    g = np.mean(found, axis=0)
    near = np.abs(middle - middle[g.argmax()]) <= FITTED
    a, b, c = np.polyfit(middle[near], g[near], 2)
    return float(-b / (2 * a)), float(c - b**2 / (4 * a))


def _pair_distribution(oxygens: Atoms, edges: FloatArray) -> FloatArray:
    """Return g(r) between edges in Å: the density of others around each atom, over the mean."""
    counts, _ = np.histogram(neighbor_list("d", oxygens, edges[-1]), edges)
    shells = 4 / 3 * np.pi * np.diff(edges**3)
    return np.asarray(counts * oxygens.get_volume() / (len(oxygens) ** 2 * shells))
