"""Cells: completion to a basis, and refusal of impossible ones."""

from __future__ import annotations

import numpy as np
import pytest

from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import Box
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
    ],
)
def test_cells_that_cannot_be_are_refused(cell, reason):
    for search in (neighbor_list, lambda p, c, *box: VerletList(c).update(p, *box)):
        with pytest.raises(InputError, match=reason):
            search(np.zeros((1, 3)), 3.0, cell, True)


def test_periodicity_of_wrong_shape_is_refused():
    with pytest.raises(InputError, match="pbc"):
        neighbor_list([[0.0, 0.0, 0.0]], 3.0, CUBE, [True, False])
