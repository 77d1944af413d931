"""Pair searches in loops for CPUs against the neighbor list of any host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import find_pairs
from mlff_triton.testing import random_cluster, random_crystal, water_box
from tests.support.graphs import assert_equal
from tests.support.periodic_structures import structures

pytest.importorskip("numba")
from mlff_triton.kernels.neighbors.cpu.search import NeighborRows, search

KINDS = ["cubic", "triclinic", "small", "slab", "rod"]


def found(systems, radius: float) -> NeighborRows:
    """Search systems, each positions and a box, in one batch."""
    return search(
        np.concatenate([points for points, _ in systems]),
        np.cumsum([0, *(len(points) for points, _ in systems)]).astype(np.int32),
        np.stack([box.cell for _, box in systems]),
        np.stack([box.pbc for _, box in systems]),
        radius,
    )


def check(systems, radius: float) -> None:
    """Compare a batch with searches of each system."""
    graphs = [find_pairs(points, box, radius) for points, box in systems]
    fields = (torch.from_numpy(field).long() for field in found(systems, radius))
    row_ptr, senders, shifts, reverse = fields
    assert_equal(Graph(row_ptr, senders, shifts, reverse), concatenate(graphs))


@given(structures())
def test_any_structure(structure):
    positions, cutoff, cell, pbc = structure
    check([(np.asarray(positions, dtype=np.float64), Box.of(cell, pbc))], cutoff)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_atoms", [1, 63, 500])
def test_crystals(kind, n_atoms, rng):
    atoms = random_crystal(n_atoms, kind)
    cells = rng.integers(-4, 5, (n_atoms, 3)) * atoms.pbc
    points = atoms.positions + cells @ atoms.cell.array
    for radius in (1.0, 4.3):
        check([(points, Box.of(atoms.cell.array, atoms.pbc))], radius)


def test_batches(rng):
    systems = [(random_cluster(1).positions, Box.of(None, False))]
    for kind in KINDS:
        atoms = random_crystal(int(rng.integers(1, 40)), kind)
        systems.append((atoms.positions, Box.of(atoms.cell.array, atoms.pbc)))
        cluster = random_cluster(int(rng.integers(2, 40))).positions
        systems.append((cluster + rng.normal(0, 1000, 3), Box.of(None, False)))
    check(systems, 3.7)


def test_a_tiny_cell_has_many_images():
    cell = np.array([[0.9, 0, 0], [0.3, 1.1, 0], [0.2, -0.4, 0.8]])
    check([(np.array([[0.1, 0.2, 0.3], [5.0, -7.0, 1.0]]), Box.of(cell, True))], 5.0)


def test_atoms_far_apart_need_no_more_bins_than_atoms():
    points = np.array([[0.0, 0, 0], [9000.0, 0, 0], [9000.0, 8000, 7000], [0.5, 0.5, 0.0]])
    check([(points, Box.of(None, False))], 1.0)
    check([(points, Box.of(np.diag([9000.7, 1, 1]), [True, False, False]))], 1.0)


@pytest.mark.parametrize("axis", range(3))
def test_flat_and_thin_systems(axis, rng):
    points = rng.uniform(0, 9, (80, 3))
    points[:, axis] = 2.5
    check([(points, Box.of(None, False))], 2.0)
    points *= 10
    points[:, axis - 1] = -1.5
    check([(points, Box.of(None, False))], 2.0)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_find_the_same(threads):
    water = water_box(100)
    systems = [(water.positions, Box.of(water.cell.array, True))]
    alone = found(systems, 5.0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shared = found(systems, 5.0)
    finally:
        torch.set_num_threads(before)
    assert all(map(np.array_equal, alone, shared))
