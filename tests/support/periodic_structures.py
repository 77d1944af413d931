"""Random structures in any cell, and their neighbors by brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from mlff_triton.neighbors.neighbor_list import MIN_DISTANCE
from mlff_triton.testing import random_rotation


@st.composite
def structures(draw):
    """Draw (positions, cutoff, cell, pbc) without a distance within rounding of the cutoff."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lengths = draw(st.tuples(*[st.floats(1.0, 9.0)] * 3))
    skew = draw(st.sampled_from([0.0, 0.3, 1.5]))
    cell = np.diag(lengths) + np.tril(rng.uniform(-skew, skew, (3, 3)), -1) * min(lengths)
    if draw(st.booleans()):
        cell = cell[::-1] @ random_rotation(rng)  # left-handed, in a random orientation
    n_atoms = draw(st.integers(1, 5))
    outside = draw(st.sampled_from([0, 1, 3]))  # cells
    positions = (
        rng.random((n_atoms, 3)) + rng.integers(-outside, outside + 1, (n_atoms, 3))
    ) @ cell
    cutoff = draw(st.floats(1.5, 5.0))  # `vesin` takes seconds if the box is wide for the cutoff
    pbc = draw(st.tuples(*[st.booleans()] * 3))
    distances = np.array([*brute_force(positions, cutoff + 1.0, cell, pbc).values()])
    assume(not (np.abs(distances - cutoff) < 1e-9).any())
    assume(not (distances < 2 * MIN_DISTANCE).any())
    return positions, cutoff, cell, pbc


def brute_force(positions, cutoff, cell, pbc) -> dict[tuple[int, ...], float]:
    """Compute the distance of every edge (i, j, Sx, Sy, Sz) by trying all relevant translations."""
    heights = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    fractional = positions @ np.linalg.inv(cell)
    reach = (np.ceil(cutoff / heights + np.ptp(fractional, axis=0)) * pbc).astype(int)
    shifts = np.array(list(np.ndindex(*(2 * reach + 1)))) - reach
    translations = shifts @ cell
    edges = {}
    for i, j in np.ndindex(len(positions), len(positions)):
        distances = np.linalg.norm(positions[i] - positions[j] - translations, axis=1)
        for k in np.flatnonzero(distances < cutoff):
            if i != j or shifts[k].any():
                edges[(i, j, *shifts[k].tolist())] = distances[k]
    return edges
