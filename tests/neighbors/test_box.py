"""Cells: completion to a basis, and refusal of impossible ones."""

from __future__ import annotations

import numpy as np
import pytest

from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import Box, check_box
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.neighbors.verlet_list import VerletList

CUBE = 3.0 * np.eye(3)


def test_box_is_completed_to_a_basis():
    box = Box.of([[3.0, 1.0, 0.0], [9.0, 9.0, 9.0], [0.0, 0.0, 2.0]], [True, False, True])
    assert box.cell[[0, 2]].tolist() == [[3.0, 1.0, 0.0], [0.0, 0.0, 2.0]]
    assert np.linalg.norm(box.cell[1]) == pytest.approx(1.0)
    assert box.cell[[0, 2]] @ box.cell[1] == pytest.approx([0.0, 0.0], abs=1e-14)
    assert box.heights == pytest.approx([10**0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ([3.0, 3.0, 3.0], r"shape \[3, 3\]"),
        (np.full((3, 3), np.nan), "NaN"),
        (np.diag([3.0, np.inf, 3.0]), "NaN or infinity"),
        (None, "no independent cell vector"),
        (np.diag([3.0, 0.0, 3.0]), "no independent cell vector"),
        ([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]], "no independent cell vector"),
        ([[1.0, 0, 0], [1.0, 1e-13, 0], [0, 0, 1.0]], "check its units"),
        (np.eye(3) * 3e-10, "check its units"),
        (np.eye(3) * 1e-3, "check its units"),
        (np.diag([5.0, 5.0, 1e300]), r"1e\+300 Å long"),
    ],
)
def test_cells_that_cannot_be_are_refused(cell, reason):
    for search in (neighbor_list, lambda p, c, *box: VerletList(c).update(p, *box)):
        with pytest.raises(InputError, match=reason):
            search(np.zeros((1, 3)), 3.0, cell, True)


@pytest.mark.parametrize(
    "pbc", [[True, False], "TTF", "false", ["T", "T", "F"], 0.5, None, np.ones(1000)]
)
def test_periodicity_must_be_one_bool_or_three(pbc):
    with pytest.raises(InputError, match="pbc must be one bool or three") as refusal:
        neighbor_list([[0.0, 0.0, 0.0]], 3.0, CUBE, pbc)
    assert len(str(refusal.value)) < 150


@pytest.mark.parametrize(
    ("n_atoms", "cell", "cutoff", "extent"),
    [
        (3, np.eye(3) * 0.01, 5.0, [1.0, 1.0, 1.0]),  # a minute
        (3000, np.eye(3) * 3.1, 7.0, np.inf),  # a box of water in nm
        (800, np.eye(3) * 20.0, 100.0, [20.0, 20.0, 20.0]),  # a huge skin
        (100_000, None, 5.0, [6.0, 6.0, 6.0]),  # a droplet in nm
    ],
)
def test_lists_that_would_not_fit_are_refused_before_they_are_built(n_atoms, cell, cutoff, extent):
    with pytest.raises(InputError, match="check its units, or take a smaller cutoff or skin"):
        check_box(n_atoms, Box.of(cell, cell is not None), cutoff, np.asarray(extent))


def test_too_many_atoms_of_liquid_density_are_not_an_error_of_units():
    with pytest.raises(InputError, match=r"10,000,000 atoms .* are too many at once: divide"):
        check_box(10_000_000, Box.of(np.eye(3) * 464.0, True), 7.5)


@pytest.mark.parametrize(
    ("n_atoms", "cell", "cutoff", "extent"),
    [
        (1, np.eye(3) * 2.2, 12.0, [0.0, 0.0, 0.0]),
        (1_000_000, np.eye(3) * 215.0, 7.0, np.inf),
        (1_000_000, None, 7.0, np.inf),
        (100, None, 5000.0, [6.0, 6.0, 6.0]),
    ],
)
def test_lists_of_real_matter_fit(n_atoms, cell, cutoff, extent):
    check_box(n_atoms, Box.of(cell, cell is not None), cutoff, np.asarray(extent))
