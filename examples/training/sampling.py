"""Sampling of geometries by dynamics, torsion scans, distortions and random contacts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from ase.data import atomic_masses, vdw_radii
from ase.units import fs, kB
from geometry import (
    FloatArray,
    attach,
    bond_lengths,
    centered,
    jittered,
    moving_side,
    rotated,
    within_three_bonds,
)
from labels import Gfn2
from tasks import Task

MAX_STRETCH = 1.6  # relative to the start length of a bond; beyond it, the bond is broken
MIN_CONTACT = 0.55  # relative to the sum of van der Waals radii, within a molecule

TIME_STEP = 1.5 * fs
FRICTION = 0.02 / fs
EQUILIBRATION = 100  # steps
QUENCH = 40  # steps
TASK_SECONDS = 6.0  # short, because running tasks must finish soon after the deadline
MAX_FRAMES = 20
DISTORTIONS = 6
CONTACTS = 30

Forces = Callable[[FloatArray], FloatArray]


def sample(task: Task) -> Iterator[FloatArray]:
    """Yield centered geometries; end a trajectory if its SCF does not converge."""
    with contextlib.suppress(RuntimeError):
        for x in SAMPLERS[task.kind](task, np.random.default_rng(task.seed)):
            yield centered(x)


def sample_md(task: Task, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Yield snapshots of a Langevin trajectory until a bond breaks."""
    (start,) = task.pieces
    n = len(start.numbers)
    every = int(np.interp(n, (10, 40), (25, 12)))
    step_seconds = 0.7e-3 * (n / 9) ** 2.1  # estimated, so that tasks are reproducible
    frames = int(np.clip(TASK_SECONDS / (every * step_seconds), 8, MAX_FRAMES))
    # Loose convergence suffices to propagate the atoms and halves the time.
    model = Gfn2(start.numbers, start.charge, accuracy=50.0, restart=True)

    def forces(x: FloatArray) -> FloatArray:
        return model(x)[1] + wall_force(x, start.wall)

    limits = MAX_STRETCH * bond_lengths(start.positions, start)
    # Heavy hydrogens do not change the sampled distribution and allow a longer time step.
    masses = np.maximum(atomic_masses[start.numbers], 4.0)
    trajectory = langevin(quench(start.positions, forces), masses, forces, task.temperature, rng)
    for step in range(1 - EQUILIBRATION, frames * every + 1):
        x = next(trajectory)
        if np.any(bond_lengths(x, start) > limits):
            return
        if step > 0 and step % every == 0:
            yield x


def sample_torsions(task: Task, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Yield jittered geometries along full turns about each rotatable bond; skip overlaps."""
    (start,) = task.pieces
    distant = ~within_three_bonds(start)
    reach = MIN_CONTACT * (vdw_radii[start.numbers][:, None] + vdw_radii[start.numbers])
    for _, j, k, _ in start.torsions:
        group = moving_side(start, j, k)
        offset = rng.uniform(0, 30)
        for degrees in range(0, 360, 30):
            x = rotated(start.positions, group, j, k, math.radians(degrees + offset))
            x = jittered(x, rng.uniform(0.02, 0.06), rng)
            gaps = np.linalg.norm(x[:, None] - x, axis=-1)
            if np.all(gaps[distant] > reach[distant]):
                yield x


def sample_distortions(task: Task, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Yield jittered copies, alternately scaled as a whole or with the length of one bond changed.

    All atoms on one side of that bond move together.
    """
    (start,) = task.pieces
    groups = {(j, k): moving_side(start, j, k) for j, k in start.bonds}
    open_bonds = [bond for bond, group in groups.items() if group.size]
    for frame in range(DISTORTIONS):
        x = start.positions.copy()
        if open_bonds and frame % 2:
            j, k = open_bonds[rng.integers(len(open_bonds))]
            x[groups[j, k]] += (rng.uniform(0.85, 1.35) - 1) * (x[k] - x[j])
        else:
            x *= rng.uniform(0.92, 1.1)
        yield jittered(x, rng.uniform(0.02, 0.08), rng)


def sample_contacts(task: Task, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Yield random arrangements of the molecules, from overlapping to far apart."""
    for _ in range(CONTACTS):
        pieces = [replace(s, positions=jittered(s.positions, 0.03, rng)) for s in task.pieces]
        cluster = pieces[0]
        for piece in pieces[1:]:
            near = rng.random() < 0.7
            contact = rng.uniform(0.6, 1.0) if near else 1 + rng.random()
            cluster = attach(rng, cluster, piece, contact)
        yield cluster.positions


SAMPLERS: dict[str, Callable[[Task, np.random.Generator], Iterator[FloatArray]]] = {
    "md": sample_md,
    "torsion": sample_torsions,
    "distort": sample_distortions,
    "contact": sample_contacts,
}


def langevin(
    x: FloatArray,
    masses: FloatArray,
    forces: Forces,
    temperature: float,
    rng: np.random.Generator,
) -> Iterator[FloatArray]:
    """Yield the positions after each BAOAB step, without end.

    B. Leimkuhler and C. Matthews, J. Chem. Phys. 2013, 138, 174102,
    https://doi.org/10.1063/1.4802990.

    Parameters
    ----------
    x : float64 [N, 3]
        Start positions in Å.
    masses : float64 [N]
        Masses in u.
    forces : callable
        Return forces in eV/Å at the given positions.
    temperature : float
        Temperature in K.
    rng : Generator
        Random numbers of the velocities and of the noise.
    """
    mass = masses[:, None]
    thermal = np.sqrt(kB * temperature / mass)
    keep = math.exp(-FRICTION * TIME_STEP)
    kick = math.sqrt(1 - keep**2) * thermal
    velocity = thermal * rng.normal(size=x.shape)
    force = forces(x)
    while True:
        velocity = velocity + 0.5 * TIME_STEP * force / mass
        x = x + 0.5 * TIME_STEP * velocity
        velocity = keep * velocity + kick * rng.normal(size=x.shape)
        x = x + 0.5 * TIME_STEP * velocity
        force = forces(x)
        velocity = velocity + 0.5 * TIME_STEP * force / mass
        yield x


def quench(x: FloatArray, forces: Forces) -> FloatArray:
    """Relieve close contacts with a few capped steps of steepest descent."""
    for _ in range(QUENCH):
        move = 0.01 * forces(x)
        length = np.linalg.norm(move, axis=1, keepdims=True)
        x = x + move * np.minimum(1, 0.05 / np.maximum(length, 1e-9))
    return x


def wall_force(x: FloatArray, radius: float) -> FloatArray:
    """Pull atoms back into a sphere about the centroid with 1 eV/Å²; radius 0 means no wall."""
    if not radius:
        return np.zeros_like(x)
    offset = x - x.mean(0)
    distance = np.linalg.norm(offset, axis=1, keepdims=True)
    return np.asarray(-np.maximum(distance - radius, 0) * offset / np.maximum(distance, 1e-9))
