"""Edges from neighbor matrices against neighbor lists on the CPU, edge by edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.neighbors.edges import edges
from mlff_triton.kernels.neighbors.reference.neighbor_list import build_rows
from mlff_triton.kernels.types.edges import Edges, Knots
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix
from mlff_triton.kernels.types.status import (
    AGE,
    CONTACT,
    FAR,
    NOT_FINITE,
    OVERLAP,
    SHORT,
    STALE,
)
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_close
from tests.support.neighbor_inputs import KINDS, structure, tensors

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

CUTOFF, SKIN, CAPACITY = 2.5, 0.5, 70
MARKS = torch.tensor([0, 3, 4, 6, 10, 16])
KNOTS = Knots(
    positions=CUTOFF * MARKS.double() / 16,
    intervals=torch.arange(len(MARKS) - 1).repeat_interleave(MARKS.diff()).int(),
)


def rows_of(structures, radius: float = CUTOFF + SKIN) -> tuple[NeighborMatrix, Tensor, Tensor]:
    """Return a neighbor matrix of shuffled atoms, the cells, and the system of each atom."""
    positions, cell, pbc, batch = tensors(structures, "cpu")
    order = torch.randperm(len(positions))
    order = order[torch.argsort(batch[order], stable=True)].int()
    rows = build_rows(positions, cell, pbc, batch, radius, CAPACITY, order)
    assert rows.needed <= CAPACITY
    return rows, cell, batch


def run(
    positions: Tensor,
    rows: NeighborMatrix,
    cell: Tensor,
    batch: Tensor,
    device: str,
    /,
    dtype: torch.dtype = torch.float64,
    knots: Knots | None = KNOTS,
    *,
    cutoff: float = CUTOFF,
    radius: float = CUTOFF + SKIN,
    others: Tensor | None = None,
    limits: Tensor | None = None,
    **changes: Tensor,
) -> tuple[Edges, Tensor]:
    """Run the operator on the device, and return its results on the CPU.

    Fields of the matrix may be changed, such as the positions at which it was built, which are the
    current ones by default.
    """
    fields = {**vars(rows), "positions": positions, **changes}
    given = (t.to(device) for t in (positions, cell, batch.int()))
    on_device = NeighborMatrix(**{name: t.to(device) for name, t in fields.items()})
    knots = None if knots is None else Knots(*(t.to(device) for t in knots))
    others, limits = (None if t is None else t.to(device) for t in (others, limits))
    options = {"others": others, "limits": limits}
    found, status = edges(*given, on_device, knots, cutoff, radius, dtype, **options)
    return Edges(*(t.cpu() for t in found)), status.cpu()


def assert_same_edges(
    found: Edges, rows: NeighborMatrix, graph: Graph, vectors: Tensor, dtype: torch.dtype
) -> None:
    """Assert that edges in the order of the matrix are those of a graph in the user's order."""
    expected = Edges.of_graph(graph.row_ptr, graph.senders, graph.reverse, vectors, KNOTS)
    rank, capacity = rows.rank.long(), rows.senders.shape[1]
    begin = found.slot_begin.long()[rank]
    assert torch.equal(begin, rank * capacity)
    assert torch.equal(found.slot_end.long()[rank] - begin, graph.row_ptr.diff())
    edge = torch.arange(graph.n_edges)
    slots = begin[graph.receivers] + edge - graph.row_ptr[graph.receivers]

    assert torch.equal(rows.order[found.senders[slots].long()].long(), graph.senders)
    origin = found.origin[slots].long()
    assert torch.equal(rows.senders.flatten()[origin], found.senders[slots])
    assert torch.equal(found.reverse[origin], found.origin[slots[graph.reverse]])
    for name in ("fraction", "width", "distance"):
        assert getattr(found, name).dtype == dtype
    assert_close(found.distance[slots], expected.distance, 0, dtype)
    assert_close(found.direction[:, slots], expected.direction, 0, dtype)
    assert_close(found.fraction[slots], expected.fraction, 0, dtype)
    assert_close(found.width[slots], expected.width, 0, dtype)
    assert torch.equal(found.interval[slots], expected.interval)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_atoms", [1, 20])
def test_finds_the_edges_within_the_cutoff(kind, n_atoms, device, dtype):
    check([structure(kind, n_atoms)], device, dtype)


def test_finds_the_edges_of_a_batch(device, dtype):
    check(
        [structure("cluster", 9), structure("slab", 1), structure("triclinic", 12)], device, dtype
    )


def check(structures, device, dtype):
    """Move atoms after the matrix was built, and compare with a list of their new positions."""
    rows, cell, batch = rows_of(structures)
    moved = [
        (p + np.random.default_rng(1).normal(0, 0.05, p.shape), *box) for p, *box in structures
    ]
    graph = concatenate([neighbor_list(p, CUTOFF, *box) for p, *box in moved])
    positions = torch.tensor(np.concatenate([p for p, *_ in moved]))
    vectors = graph.vectors(positions, cell, batch)
    built = torch.tensor(np.concatenate([p for p, *_ in structures]))
    found, status = run(positions, rows, cell, batch, device, dtype, **at(built))
    assert_same_edges(found, rows, graph, vectors, dtype)
    assert (status <= AGE).all()


@pytest.mark.parametrize("cutoff", [2.3, 2.4])
@pytest.mark.parametrize(("beyond", "n_edges"), [(-1e-9, 1), (1e-9, 0)])
def test_the_cutoff_is_kept_to_the_last_digits(cutoff, beyond, n_edges, device):
    """In float32, 2.3 would be too small by 5e-8, and 2.4 too large by 1e-7."""
    pair = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, cutoff + beyond]])
    rows, cell, batch = rows_of([(pair, None, False)], 3.0)
    found, _ = run(torch.tensor(pair), rows, cell, batch, device, cutoff=cutoff)
    assert (found.slot_end - found.slot_begin).tolist() == [n_edges, n_edges]


def test_a_list_without_skin_misses_nothing(device):
    structures = [structure("triclinic", 20)]
    rows, cell, batch = rows_of(structures, CUTOFF)
    positions, *box = structures[0]
    graph = neighbor_list(positions, CUTOFF, *box)
    positions = torch.tensor(positions)
    found, _ = run(positions, rows, cell, batch, device)
    vectors = graph.vectors(positions, cell, batch)
    assert_same_edges(found, rows, graph, vectors, torch.float64)
    assert torch.equal(found.slot_end - found.slot_begin, rows.count)


def test_edges_without_knots_have_no_position_in_tables(device):
    structures = [structure("triclinic", 20)]
    rows, cell, batch = rows_of(structures)
    given = torch.tensor(structures[0][0]), rows, cell, batch, device
    (found, status), (expected, expected_status) = run(*given, knots=None), run(*given)
    assert len(found.interval) == len(found.fraction) == len(found.width) == 0
    assert torch.equal(status, expected_status)
    assert torch.equal(found.slot_end, expected.slot_end)
    slots, _ = expected.live()
    for name in ("senders", "origin", "distance"):
        assert torch.equal(getattr(found, name)[slots], getattr(expected, name)[slots])
    assert torch.equal(found.direction[:, slots], expected.direction[:, slots])


def test_joins_the_status_of_another_list(device):
    positions = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 5e-4], [0.0, 0.0, 2.0]])
    rows, cell, batch = rows_of([(positions, None, False)])
    others = torch.tensor([STALE | 3, 7, SHORT | 9]).int()
    given = torch.tensor(positions), rows, cell, batch, device
    _, status = run(*given, knots=None, others=others)
    assert status.tolist() == [OVERLAP | STALE | 3, OVERLAP | 7, SHORT | 9]


def test_gives_the_same_bits_again(device):
    rows, cell, batch = rows_of([structure("cubic", 20)])
    positions = torch.tensor(structure("cubic", 20)[0])
    (first, _), (second, _) = (run(positions, rows, cell, batch, device) for _ in range(2))
    slots, _ = first.live()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other) or torch.equal(one[..., slots], other[..., slots])


def pair(distance: float) -> Tensor:
    return torch.tensor([[0.0, 0.0, 0.0], [distance, 0.0, 0.0]]).double()


def run_pair(distance: float, device: str, **options: object) -> tuple[Edges, Tensor]:
    rows, cell, batch = rows_of([(pair(1.0).numpy(), None, False)])
    return run(pair(distance), rows, cell, batch, device, **options)


def test_the_cutoff_itself_is_outside(device):
    for distance, n_edges in ((np.nextafter(CUTOFF, 0), 1), (CUTOFF, 0)):
        found, _ = run_pair(distance, device)
        assert (found.slot_end - found.slot_begin).tolist() == [n_edges] * 2


@pytest.mark.parametrize("distance", KNOTS.positions[1:-1].tolist())
def test_knots_belong_to_an_interval_beside_them(distance, device):
    for d in (np.nextafter(distance, 0), distance, np.nextafter(distance, 9)):
        found, _ = run_pair(d, device)
        slot = found.slot_begin[0]
        start = KNOTS.positions[found.interval[slot]]
        assert_close(start + found.fraction[slot] * found.width[slot], d, 0)
        assert KNOTS.positions[found.interval[slot] + 1] - start == found.width[slot]
        assert 0 <= found.fraction[slot] <= 1


def test_distances_below_the_first_knot_count_as_it(device):
    knots = KNOTS._replace(positions=KNOTS.positions + 0.5)
    found, _ = run_pair(0.3, device, knots=knots)
    assert found.interval[found.slot_begin.long()].tolist() == [0, 0]
    assert found.fraction[found.slot_begin.long()].tolist() == [0, 0]


def at(built: Tensor) -> dict[str, Tensor]:
    """Return the fields of a matrix that was built at these positions."""
    return {"positions": built}


def test_atoms_that_moved_too_far_are_stale(device):
    for distance, expected in ((1.0, 0), (1.1, 102), (1.249, 254), (1.26, STALE)):
        _, status = run_pair(distance, device, **at(pair(1.0)))
        assert status.tolist() == [0, expected]


@pytest.mark.parametrize("stretch", [0.96, 1.0, 1.1])
def test_strain_is_no_motion(stretch, device):
    """It only reduces how far atoms may move, exactly if it is the same in all directions."""
    structures = [structure("triclinic", 12), structure("cubic", 5)]
    rows, cell, batch = rows_of(structures)
    built = torch.tensor(np.concatenate([p for p, *_ in structures])) + 30.0
    positions, box = stretch * built, stretch * cell
    _, status = run(positions, rows, box, batch, device, **at(built))
    assert not status.any()
    limit = (stretch * (CUTOFF + SKIN) - CUTOFF) / 2
    for distance, expected in ((0.99 * limit, 253), (1.01 * limit, STALE)):
        positions[3, 1] = stretch * built[3, 1] + distance
        _, status = run(positions, rows, box, batch, device, **at(built))
        assert status.nonzero().tolist() == [[3]]
        assert status[3] == expected
    if stretch != 1:
        _, status = run(positions, rows, cell, batch, device, **at(built))
        assert (status & STALE).all()


@pytest.mark.parametrize("seed", range(5))
def test_limits_are_never_too_wide(seed, device):
    """No pair beyond the radius can come within the cutoff before an atom is stale."""
    rng = np.random.default_rng(seed)
    strain = torch.eye(3).double() + torch.tensor(rng.uniform(-0.04, 0.04, (3, 3)))
    rows, cell, batch = rows_of([structure("triclinic", 12)])
    built = torch.tensor(structure("triclinic", 12)[0])
    positions = built @ strain
    smallest = float(torch.linalg.svdvals(strain).min())
    limit = (smallest * (CUTOFF + SKIN) - CUTOFF) / 2
    positions[3] += limit * torch.tensor([0.6, 0.0, 0.8])
    _, status = run(positions, rows, cell @ strain, batch, device, **at(built))
    assert status[3] == STALE
    assert (status[:3] == 0).all() or (status[:3] == STALE).all()


def test_each_system_has_its_limit(device):
    cells = [4.0 * np.eye(3), 4.0 * np.eye(3)]
    rows, cell, batch = rows_of([(pair(1.0).numpy(), box, True) for box in cells])
    built = torch.cat([pair(1.0)] * 2)
    cell[0] *= 0.9
    positions = torch.cat([0.9 * pair(1.0), pair(1.0)]) + 0.11
    _, status = run(positions, rows, cell, batch, device, **at(built))
    assert status.tolist()[:2] == [STALE, STALE]
    assert (status[2:] == int(256 * 0.11 * 3**0.5 / 0.25)).all()


@pytest.mark.parametrize(("field", "problem"), [("needed", SHORT), ("reach", FAR)])
def test_incomplete_matrices_are_reported_for_every_atom(field, problem, device):
    last = {"needed": 2, "reach": 127}[field]
    for value, expected in ((last, 0), (last + 1, problem)):
        rows, cell, batch = rows_of([(pair(1.0).numpy(), None, False)])
        slots = {name: getattr(rows, name)[:, :2].contiguous() for name in ("senders", "shifts")}
        changes = {**slots, field: torch.tensor(value, dtype=torch.int32)}
        _, status = run(pair(1.0), rows, cell, batch, device, **changes)
        assert status.tolist() == [expected] * 2


@pytest.mark.parametrize("distance", [0.0, 9e-4])
def test_atoms_in_one_place_overlap(distance, device):
    _, status = run_pair(distance, device)
    assert status.tolist() == [OVERLAP, OVERLAP]
    _, status = run_pair(distance, device, **at(pair(1.0)))
    assert status.tolist() == [OVERLAP, OVERLAP | STALE]
    _, status = run_pair(1.1e-3, device)
    assert status.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbors_closer_than_their_limits_are_in_contact(dtype, device):
    """Among atoms in any order, whatever the precision of the network."""
    structures = [structure("triclinic", 20), structure("cubic", 20)]
    rows, cell, batch = rows_of(structures)
    positions = torch.tensor(np.concatenate([p for p, *_ in structures]))
    graph = concatenate([neighbor_list(p, CUTOFF, *box) for p, *box in structures])
    distances = graph.vectors(positions, cell, batch).norm(dim=1)
    limits = torch.rand(40, generator=torch.Generator().manual_seed(0)).double()
    room = distances - limits[graph.receivers] - limits[graph.senders]
    closest = torch.full((40,), torch.inf).double()
    closest.scatter_reduce_(0, graph.receivers, room, "amin")
    assert 0 < (closest < 0).sum() < 40
    _, status = run(positions, rows, cell, batch, device, dtype, limits=limits)
    assert torch.equal(status, CONTACT * (closest < 0).int())
    barely = torch.tensor([0.4, 0.6], dtype=torch.float64)
    for distance, expected in ((np.nextafter(1, 0), CONTACT), (1.0, 0)):
        _, status = run_pair(distance, device, limits=barely)
        assert status.tolist() == [expected] * 2


def test_contacts_hide_no_other_problem(device):
    limits = torch.tensor([0.4, 0.6], dtype=torch.float64)
    _, status = run_pair(5e-4, device, limits=limits, **at(pair(1.0)))
    assert status.tolist() == [CONTACT | OVERLAP, CONTACT | OVERLAP | STALE]
    assert CONTACT < STALE  # so that the highest status of all atoms tells of a stale matrix
    for number in (np.nan, np.inf):
        _, status = run_pair(number, device, limits=limits)
        assert status.tolist() == [0, NOT_FINITE]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_positions_that_are_no_numbers(number, device):
    found, status = run_pair(number, device)
    assert status.tolist() == [0, NOT_FINITE]
    assert torch.equal(found.slot_begin, found.slot_end)
