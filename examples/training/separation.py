"""Molecules of a cluster far from each other, whose energy is that without their interaction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ase.data import covalent_radii
from geometry import Structure
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

BOND = 1.25  # longest bond, in sums of covalent radii
FAR = 40.0  # Å between the molecules' places, along x
MOST_MOLECULES = 4


def separated(structure: Structure) -> Structure | None:
    """Move the molecules of a neutral cluster apart, without a change of any of them.

    Returns
    -------
    Structure or None
        None if there is one molecule or more than `MOST_MOLECULES`, or a total charge, of which
        nobody knows which molecule has it.
    """
    radii, x = covalent_radii[structure.numbers], structure.positions
    n_molecules, owner = connected_components(cdist(x, x) < BOND * (radii[:, None] + radii))
    if structure.charge or not 1 < n_molecules <= MOST_MOLECULES:
        return None
    return replace(structure, positions=x + FAR * np.outer(owner, [1.0, 0.0, 0.0]))
