"""Neighbor matrices against brute force and against neighbor lists on the CPU, edge by edge."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.neighbors import neighbor_list as operator
from mlff_triton.kernels.neighbors.bins import Boxes
from mlff_triton.kernels.neighbors.reference import neighbor_list as reference
from mlff_triton.kernels.types.neighbor_matrix import (
    MAX_REACH,
    NeighborMatrix,
    pack_shifts,
    unpack_shifts,
)
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_close, random_rotation
from tests.support.graphs import assert_equal, assert_valid
from tests.support.neighbor_inputs import KINDS, structure, tensors
from tests.support.neighbor_rows import to_csr

# Triton's interpreter converts the bounds of loops in a way that NumPy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0")

RADIUS = 3.0


SIZES = {} if torch.cuda.is_available() else {"atoms_per_program": 32}
"""The interpreter runs fewest programs fastest, so they are large."""


def build_rows(*inputs, **named) -> NeighborMatrix:
    return operator.build_rows(*inputs, **named, **SIZES)


def check(structures, device, radius: float = RADIUS, capacity: int = 40) -> NeighborMatrix:
    """Build a complete neighbor matrix that agrees with brute force and with the CPU's list."""
    inputs = tensors(structures, device)
    rows = build_rows(*inputs, radius, capacity)
    assert rows.needed <= capacity
    assert rows.reach <= MAX_REACH
    assert_same(rows, reference.build_rows(*inputs, radius, capacity, rows.order))
    expected = concatenate([neighbor_list(p, radius, *box) for p, *box in structures])
    assert_equal(graph_of(rows), expected)
    return rows


def assert_same(actual: NeighborMatrix, expected: NeighborMatrix) -> None:
    for field in fields(NeighborMatrix):
        one, other = getattr(actual, field.name), getattr(expected, field.name)
        floats = field.name in ("positions", "inverse")
        assert one.dtype == other.dtype == (torch.float64 if floats else torch.int32)
        if field.name == "inverse":
            assert_close(one, other, 0)
        else:
            assert torch.equal(one, other), field.name


def graph_of(rows: NeighborMatrix) -> Graph:
    return Graph(*to_csr(rows)).to("cpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_atoms", [1, 63])
def test_finds_the_same_edges(kind, n_atoms, device):
    rows = check([structure(kind, n_atoms, seed=n_atoms)], device)
    assert_valid(graph_of(rows))


def test_finds_the_same_edges_of_many_atoms(device):
    rows = check([structure("cluster", 500)], device, radius=2.0, capacity=16)
    assert not torch.equal(rows.order, rows.rank)  # atoms were sorted by bin


@pytest.mark.parametrize("seed", range(6))
def test_finds_the_same_edges_in_any_cell(seed, device):
    rng = np.random.default_rng(seed)
    cell = np.diag(rng.uniform(1.5, 9.0, 3)) + np.tril(rng.uniform(-1, 1, (3, 3)), -1)
    cell = cell[rng.permutation(3)] @ random_rotation(rng)  # of either handedness
    outside = rng.integers(-3, 4, (5, 3))
    check([((rng.random((5, 3)) + outside) @ cell, cell, rng.random(3) < 0.7)], device)


def test_systems_of_a_batch_do_not_see_each_other(device):
    sizes = {"cluster": 9, "small": 3, "slab": 1, "triclinic": 12, "rod": 4, "cubic": 1}
    rows = check([structure(kind, size) for kind, size in sizes.items()], device)
    systems = torch.arange(len(sizes)).repeat_interleave(torch.tensor([*sizes.values()]))
    assert torch.equal(systems[rows.order.long().cpu()], systems)


def test_systems_of_a_batch_may_be_empty(device):
    structures = structure("cluster", 9), structure("cubic", 20)
    positions, cell, pbc, batch = tensors(structures, device)
    rows = build_rows(positions, cell[[0, 0, 1, 1]], pbc[[0, 0, 1, 1]], 1 + batch, 2.0, 16)
    expected = concatenate([neighbor_list(p, 2.0, *box) for p, *box in structures])
    assert_equal(graph_of(rows), expected)


@pytest.mark.parametrize("kind", ["triclinic", "slab"])
def test_atoms_may_lie_outside_the_cell(kind, device, rng):
    positions, cell, pbc = structure(kind, 20)
    outside = rng.integers(-60, 61, (20, 3)) * pbc
    rows = check([(positions + outside @ cell, cell, pbc)], device)
    assert rows.reach > 60


def test_atoms_may_lie_far_away_together(device):
    positions, cell, _ = structure("triclinic", 20)
    far = positions + [100_000, -100_000, 50_000] @ cell
    assert_equal(graph_of(check([(far, cell, True)], device)), neighbor_list(far, 3.0, cell, True))


@pytest.mark.parametrize("n_side", [1, 2, 4])
def test_atoms_may_lie_on_faces_of_cell_and_bins(n_side, device):
    sites = np.array(list(np.ndindex(n_side, n_side, n_side))) * 2.0
    sites[::2] += 2.0 * n_side
    check([(sites, 2.0 * n_side * np.eye(3), True)], device, radius=2.0 + 1e-9, capacity=8)


def test_bins_of_a_long_molecule_share_numbers(device):
    chain = np.outer(np.arange(230), [1.0, 0.5, 0.2])
    rows = check([(chain, None, False)], device, radius=1.5, capacity=4)
    assert rows.needed == 2


def test_isolated_atoms_have_no_edges(device):
    rows = check([(50.0 * np.eye(3), None, False), ([[0.0, 0.0, 0.0]], None, False)], device)
    assert rows.needed == 0
    assert not rows.count.any()


def test_a_pair_at_the_radius_is_out(device):
    pair = ([[0.0, 0.0, 0.0], [0.0, 0.0, 1.5]], None, False)
    assert check([pair], device, radius=1.5).needed == 0
    assert check([pair], device, radius=np.nextafter(1.5, 2)).needed == 1


@pytest.mark.parametrize("capacity", [1, 5])
def test_missing_room_is_reported_exactly(capacity, device):
    inputs = tensors([structure("triclinic", 20)], device)
    rows = build_rows(*inputs, RADIUS, capacity)
    needed = int(rows.needed)
    assert needed == int(reference.build_rows(*inputs, RADIUS, 1).needed) > capacity
    assert rows.count.max() == capacity
    for indices, bound in ((rows.senders, 20), (rows.reverse, 20 * capacity)):
        assert ((indices >= 0) & (indices < bound)).all()
    check([structure("triclinic", 20)], device, capacity=needed)


def test_shifts_that_fit_no_byte_are_reported(device):
    for cells, fits in ((127, True), (128, False)):
        positions = [[0.0, 0.0, 0.0], [1.0 - 2.0 * cells, 0.0, 0.0]]
        box = ([positions[0], positions[1]], np.diag([2.0, 9.0, 9.0]), True)
        rows = build_rows(*tensors([box], device), 1.5, 8)
        assert rows.needed == 2
        assert (rows.reach <= MAX_REACH) == fits


@pytest.mark.parametrize("coordinate", [np.nan, 1e12])
@pytest.mark.parametrize("kind", ["cubic", "cluster"])
def test_atoms_that_are_nowhere_are_reported(coordinate, kind, device):
    positions, cell, pbc = structure(kind, 5)
    positions[3, 1] = coordinate
    assert build_rows(*tensors([(positions, cell, pbc)], device), RADIUS, 40).reach > MAX_REACH


def test_a_second_list_is_the_same_to_the_bit(device):
    inputs = tensors([structure("triclinic", 40), structure("cluster", 9)], device)
    assert_same(build_rows(*inputs, RADIUS, 40), build_rows(*inputs, RADIUS, 40))


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_list_of_the_same_atoms(kind, device):
    """It has the edges of a list of its own, for atoms that are sorted as in the longer one."""
    inputs = positions, cell, pbc, batch = tensors([structure(kind, 63, seed=3)], device)
    rows = build_rows(*inputs, RADIUS, 40)
    short = rows.shorter(8)
    boxes = Boxes(cell, pbc.view(torch.uint8), torch.tensor([0, 63], device=device))
    operator.fill_rows(rows, positions, batch, boxes, RADIUS, shorter=(short, 1.7), **SIZES)
    assert_same(rows, build_rows(*inputs, RADIUS, 40))
    assert 1 < int(short.needed) <= 8
    assert_same(short, reference.build_rows(*inputs, 1.7, 8, rows.order))


def test_rows_keep_their_order_when_atoms_are_sorted_otherwise(device):
    positions, cell, pbc = structure("triclinic", 40)
    here = build_rows(*tensors([(positions, cell, pbc)], device), 2.0, 16)
    there = build_rows(
        *tensors([(positions + np.array([0.7, 1.9, 3.1]), cell, pbc)], device), 2.0, 16
    )
    assert not torch.equal(here.order, there.order)
    assert_equal(graph_of(here), graph_of(there))


def test_permuted_atoms_have_permuted_edges(device, rng):
    positions, cell, pbc = structure("triclinic", 30)
    check([(positions[rng.permutation(30)], cell, pbc)], device)


def test_inputs_may_be_strided(device):
    positions, cell, pbc, batch = tensors([structure("triclinic", 10)], device)
    strided = positions.T.contiguous().T, cell.mT.contiguous().mT, pbc, batch
    assert_same(
        build_rows(*strided, RADIUS, 40), build_rows(positions, cell, pbc, batch, RADIUS, 40)
    )


def test_shifts_survive_packing():
    shifts = torch.tensor([[0, 0, 0], [1, -2, 3], [127, -127, 0], [-127, 0, 127]])
    assert torch.equal(unpack_shifts(pack_shifts(shifts)), shifts)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"positions": torch.zeros(2, 2).double()}, "positions has the shape"),
        ({"positions": torch.zeros(2, 3)}, r"positions is torch.float32"),
        ({"positions": torch.zeros(0, 3).double(), "batch": torch.zeros(0).long()}, "no atoms"),
        ({"cell": torch.eye(3).double()}, "cell has the shape"),
        ({"cell": torch.eye(3)[None]}, "cell is torch.float32"),
        ({"pbc": torch.zeros(2, 3).bool()}, "pbc has the shape"),
        ({"pbc": torch.zeros(1, 3)}, "pbc is torch.float32"),
        ({"batch": torch.zeros(3).long()}, "batch has the shape"),
        ({"batch": torch.zeros(2).int()}, "batch is torch.int32"),
        ({"radius": 0.0}, "radius"),
        ({"radius": np.nan}, "radius"),
        ({"radius": np.inf}, "radius"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": 5000}, "capacity"),
    ],
)
def test_wrong_inputs_are_refused(changes, reason, device):
    inputs = {
        "positions": torch.zeros(2, 3).double(),
        "cell": torch.eye(3).double()[None],
        "pbc": torch.zeros(1, 3).bool(),
        "batch": torch.zeros(2).long(),
        "radius": 3.0,
        "capacity": 8,
    } | changes
    on_device = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    with pytest.raises(InputError, match=reason):
        build_rows(**on_device)


def test_lists_too_long_for_their_indices_are_refused(device):
    positions = torch.zeros(1, 3, dtype=torch.float64, device=device).expand(2**21, 3)
    cell, pbc = torch.eye(3).double()[None].to(device), torch.zeros(1, 3).bool().to(device)
    batch = torch.zeros(1, dtype=torch.int64, device=device).expand(2**21)
    with pytest.raises(InputError, match="32-bit"):
        build_rows(positions, cell, pbc, batch, 3.0, 1024)
