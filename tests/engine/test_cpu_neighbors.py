"""Edges of steps on a CPU, from lists that are reused, against fresh neighbor lists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.engine.batch import Batch
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.kernels.types.edges import Edges, Knots
from mlff_triton.neighbors.contacts import ContactSearch
from mlff_triton.neighbors.graph import concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.neighbors.verlet_list import VerletList
from mlff_triton.testing import assert_close, random_cluster, random_crystal, water_box

pytest.importorskip("numba")
from mlff_triton.engine.cpu_neighbors import CpuNeighbors

CUTOFF, SKIN = 3.0, 0.6
MARKS = torch.tensor([0, 3, 4, 6, 10, 16])
KNOTS = Knots(
    positions=CUTOFF * MARKS.double() / 16,
    intervals=torch.arange(len(MARKS) - 1).repeat_interleave(MARKS.diff()).int(),
)
KINDS = ["vacuum", "cubic", "triclinic", "small", "slab", "rod"]


def neighbors(dtype: torch.dtype = torch.float64, skin: float = SKIN) -> CpuNeighbors:
    return CpuNeighbors(CUTOFF, skin, KNOTS, dtype)


def structure(kind: str, n_atoms: int = 30) -> Atoms:
    return random_cluster(n_atoms) if kind == "vacuum" else random_crystal(n_atoms, kind)


def batch_of(systems: list[Atoms]) -> Batch:
    batches = [Batch.of(a.numbers, a.positions, a.cell.array, a.pbc) for a in systems]
    return Batch.concatenate(batches)


def expected(batch: Batch, cutoff: float = CUTOFF) -> Edges:
    """Return the edges of fresh lists."""
    parts = np.split(batch.positions, batch.system_ptr[1:-1])
    systems = zip(parts, batch.boxes, strict=True)
    graph = concatenate([neighbor_list(p, cutoff, b.cell, b.pbc) for p, b in systems])
    cells = torch.from_numpy(np.stack([box.cell for box in batch.boxes]))
    atoms = torch.from_numpy(batch.positions), cells, torch.from_numpy(batch.system)
    vectors = graph.vectors(*atoms)
    return Edges.of_graph(graph.row_ptr, graph.senders, graph.reverse, vectors, KNOTS)


def compact(edges: Edges) -> dict[str, torch.Tensor]:
    """Return the fields of all edges, numbered one after another."""
    slots, receivers = edges.live()
    number = torch.full((len(edges.senders),), -1)
    number[edges.origin[slots].long()] = torch.arange(len(slots))
    fields = ("senders", "interval", "fraction", "width", "distance")
    found = {name: getattr(edges, name)[slots] for name in fields}
    reverse = number[edges.reverse[edges.origin[slots].long()].long()]
    return found | {
        "receivers": receivers,
        "reverse": reverse,
        "direction": edges.direction[:, slots],
    }


def poison(edges: Edges) -> None:
    """Fill the slots, which the next selection overwrites where it finds edges."""
    for name in ("senders", "origin", "interval", "fraction", "width", "distance", "direction"):
        field = getattr(edges, name)
        field.fill_(torch.nan if field.is_floating_point() else -(2**30))


def check(found: Edges, reference: Edges, dtype: torch.dtype = torch.float64) -> None:
    """Compare edges with those of a graph."""
    ours, theirs = compact(found), compact(reference)
    for name, field in theirs.items():
        if field.is_floating_point():
            assert ours[name].dtype == dtype
            torch.testing.assert_close(ours[name], field.to(dtype), rtol=1e-6, atol=1e-6)
            assert_close(ours[name].double(), field.to(dtype).double(), 0)
        else:
            assert torch.equal(ours[name].long(), field.long())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strain", [0.0, 5e-4])
@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_those_of_fresh_lists_at_every_step(kind, strain, dtype, rng):
    """Results do not depend on the age of the list, to the bit."""
    atoms, veteran, n_steps = structure(kind), neighbors(dtype), 40
    for _ in range(n_steps):
        deformation = np.eye(3) + rng.normal(0, strain, (3, 3))
        atoms.set_cell(atoms.cell.array @ deformation)
        atoms.positions = atoms.positions @ deformation
        atoms.positions += rng.normal(0, 0.02, atoms.positions.shape)
        batch = batch_of([atoms])
        edges = veteran.update(batch)
        check(edges, expected(batch), dtype)
        fresh = compact(neighbors(dtype).update(batch))
        assert all(torch.equal(fresh[name], field) for name, field in compact(edges).items())
        poison(edges)
    assert 1 < veteran.n_builds < n_steps / 3


def test_batches_share_a_list(rng):
    systems = [structure(kind, 1 + 3 * k) for k, kind in enumerate(KINDS)]
    ours = neighbors()
    for _ in range(5):
        batch = batch_of(systems)
        check(ours.update(batch), expected(batch))
        check(ours.within(1.9, batch), expected(batch, 1.9))
        for atoms in systems:
            atoms.positions += rng.normal(0, 0.02, atoms.positions.shape)
            atoms.set_cell(1.001 * atoms.cell.array, scale_atoms=True)
    assert ours.n_builds == 1
    batch = batch_of(systems[:3])
    check(ours.update(batch), expected(batch))
    assert ours.n_builds == 2


def test_opposite_edges_have_exactly_opposite_vectors():
    batch = batch_of([structure("triclinic", 200)])
    edges = compact(neighbors().update(batch))
    vectors = edges["direction"] * edges["distance"]
    assert torch.equal(vectors[:, edges["reverse"]], -vectors)


def test_one_atom_that_moves_far_is_enough_for_a_new_list():
    batch = batch_of([structure("cubic", 40)])
    ours = neighbors()
    ours.update(batch)
    for distance, n_builds in ((0.49 * SKIN, 1), (0.51 * SKIN, 2)):
        points = batch.positions.copy()
        points[7, 1] += distance
        ours.update(batch.with_positions(points))
        assert ours.n_builds == n_builds
    turned = replace(batch, positions=batch.positions + 0.3)
    ours.update(turned)
    assert ours.n_builds == 3


def test_without_a_skin_each_step_has_a_new_list():
    batch, ours = batch_of([structure("slab")]), neighbors(skin=0.0)
    for k in range(3):
        check(ours.update(batch), expected(batch))
        assert ours.n_builds == k + 1


def test_other_periodic_directions_need_a_new_list():
    atoms, ours = structure("cubic"), neighbors()
    for pbc in (True, False, [True, False, True]):
        atoms.pbc = pbc
        batch = batch_of([atoms])
        check(ours.update(batch), expected(batch))


@pytest.mark.parametrize("n_others", [0, 2])
def test_coinciding_atoms_are_refused_as_everywhere(n_others):
    """A new list and an old one have the messages of other lists, with indices in the system."""
    others = [structure("slab", 9)] * n_others
    atoms = structure("cubic", 20)
    messages = []
    for old in (False, True):
        pair = VerletList(CUTOFF, 1.0), neighbors(skin=1.0)
        good = batch_of([*others, atoms])
        close = atoms.copy()
        near = int(atoms.get_distances(3, range(20), mic=True).argsort()[1])
        vector = atoms.get_distance(3, near, mic=True, vector=True)
        ours, theirs = pair[1], pair[0]
        if old:
            close.positions[3] += 0.98 * vector
            good = batch_of([*others, close])
            ours.update(good)
            theirs.update(close.positions, close.cell.array, close.pbc)
            close.positions[3] += (0.02 - 1e-5) * vector
        else:
            close.positions[3] += vector - [0, 0, 1e-5]
        bad = good.with_positions(batch_of([*others, close]).positions)
        for call in (
            lambda: ours.update(bad),  # noqa: B023 (called at once)
            lambda: theirs.update(close.positions, close.cell.array, close.pbc),  # noqa: B023
        ):
            with pytest.raises(OverlappingAtomsError) as caught:
                call()
            messages.append((str(caught.value), caught.value.atoms))
    assert messages[0] == messages[1]
    assert messages[2] == messages[3]
    assert "have come to the same point" in messages[3][0]


@pytest.mark.parametrize(
    ("positions", "cell", "pbc", "message"),
    [
        ([[0.0, 0, 0]], 0.1 * np.eye(3), True, "cell is 0.1 Å high"),
        ([[0.0, 0, 0], [1e6, 0, 0]], None, False, "too far apart"),
        ([[0.0, 0, 0], [1e13, 0, 0]], None, False, "from the origin"),
        (np.random.default_rng(0).uniform(0, 0.1, (30_000, 3)), None, False, "neighbors within"),
    ],
)
def test_absurd_input_is_refused_as_everywhere(positions, cell, pbc, message):
    numbers = np.ones(len(positions), dtype=int)
    batch = Batch.of(numbers, positions, cell, pbc)
    with pytest.raises(InputError, match=message) as theirs:
        VerletList(CUTOFF, SKIN).update(positions, cell, pbc)
    with pytest.raises(InputError) as ours:
        neighbors().update(batch)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_find_the_same(threads):
    batch = batch_of([water_box(80)])
    alone = compact(neighbors().update(batch))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shared = compact(neighbors().update(batch))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(shared[name], field) for name, field in alone.items())


@pytest.mark.parametrize("kind", KINDS)
def test_atoms_that_are_too_close_are_those_of_a_search(kind, rng):
    """Lengths decide, not distances alone; indices are those in the system."""
    atoms, ours = structure(kind, 25), neighbors()
    batch = batch_of([structure("slab", 7), atoms])
    lengths = rng.uniform(0.1, 0.9, len(batch.numbers))
    lengths[:7] = 0.0
    search = ContactSearch(lengths[7:])
    contact = search.find(atoms.positions, atoms.cell.array, atoms.pbc)
    ours.lengths = lengths
    assert contact is not None
    with pytest.raises(OverlappingAtomsError) as caught:
        ours.update(batch)
    assert str(caught.value) == str(contact)
    assert ours.blamed == contact.first + 7
    slack = contact.distance - lengths[7 + contact.first] - lengths[7 + contact.second]
    lengths += slack / 2 - 1e-9
    ours.update(batch)
    lengths += 2e-9
    with pytest.raises(OverlappingAtomsError, match=str(contact)):
        ours.update(batch)
    ours.lengths = None
    ours.update(batch)
