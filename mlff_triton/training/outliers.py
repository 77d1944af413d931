"""Structures with outlying energies, from other units or failed calculations."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from mlff_triton.training.frames import Array, Frames
from mlff_triton.units import ENERGY_UNITS

MAX_RESIDUAL = 10.0  # eV per atom from the energies that the elements explain
FIT_STEPS = 50
SMALL = 1e-3  # eV per atom, below which residuals count alike
RATIO_TOLERANCE = 0.03  # of energies in another unit


def outliers(frames: Frames) -> dict[int, str]:
    """Return the indices of structures whose energies are far from all others, and why.

    A sum of an energy per element is fitted to most structures: the sum of absolute residuals is
    minimized by iteratively reweighted least squares, so that some wrong energies do not shift it.

    Parameters
    ----------
    frames : Frames
        All structures.

    Returns
    -------
    dict of int
        Reasons by the indices of the structures.
    """
    n_atoms = frames.n_atoms
    energies = frames.energy / n_atoms
    explained = _fit(frames.counts(frames.elements) / n_atoms[:, None], energies)
    found = {}
    for k in np.flatnonzero(np.abs(energies - explained) > MAX_RESIDUAL).tolist():
        unit = _other_unit(energies[k] / explained[k]) if explained[k] else ""
        found[k] = (
            f"its energy of {frames.energy[k]:.6g} eV differs by "
            f"{abs(energies[k] - explained[k]):.4g} eV per atom from what the other structures "
            f"have for its elements{unit}"
        )
    return found


def _fit(fractions: Array, energies: Array) -> Array:
    """Return the best fit of energies per atom by fractions of elements [C, elements]."""
    weights = np.ones(len(energies))
    explained = energies
    for _ in range(FIT_STEPS):
        rows = weights[:, None] * fractions
        solution = np.linalg.lstsq(rows, weights * energies, rcond=None)[0]
        explained = fractions @ solution
        weights = 1 / np.sqrt(np.maximum(np.abs(energies - explained), SMALL))
    return np.asarray(explained)


def _other_unit(ratio: float) -> str:
    """Return a remark if a ratio of energies equals the ratio of two units."""
    for own, other in permutations(ENERGY_UNITS, 2):
        expected = ENERGY_UNITS[own] / ENERGY_UNITS[other]
        if abs(ratio / expected - 1) < RATIO_TOLERANCE:
            return f", as if units were mixed: {' and '.join(sorted((own, other)))}"
    return ""
