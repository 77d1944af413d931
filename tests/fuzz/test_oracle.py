"""The oracle finds the same pairs as the package, and notices small differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlff_triton import neighbor_list
from mlff_triton.testing import random_cluster, random_crystal
from tests.fuzz import oracle
from tests.fuzz.kind import Finding
from tests.support.checkpoints import ATOMS, native


@pytest.mark.parametrize("kind", ["cluster", "cubic", "triclinic", "small", "slab", "rod"])
def test_pairs_are_those_of_the_package(kind):
    atoms = random_cluster(6) if kind == "cluster" else random_crystal(6, kind)
    atoms.positions[0] += 3 * atoms.cell.array[2]
    found = oracle.all_pairs(atoms, 4.0)
    expected = neighbor_list(atoms.positions, 4.0, atoms.cell.array, atoms.pbc)
    assert found.n_edges
    for name in ("row_ptr", "senders", "shifts"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_small_differences_are_findings():
    energy, forces = oracle.evaluate(native(), ATOMS, dtype="float64")
    oracle.compare(energy, forces, (energy, forces), "twins")
    other = forces.copy()
    other[2, 1] += 1e-5 * np.abs(forces).max()
    for result in ((energy * (1 + 1e-6), forces), (energy, other), (np.nan, forces)):
        with pytest.raises(Finding, match="twins disagree"):
            oracle.compare(*result, (energy, forces), "twins")


def test_results_that_are_not_finite_are_findings():
    model = native()
    with torch.no_grad():
        model.readout.linear.weight.fill_(torch.nan)
    with pytest.raises(Finding, match="not finite"):
        oracle.check_results(model, ATOMS)
