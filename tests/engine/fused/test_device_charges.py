"""Steps of TensorNet2 on a GPU: buffers, graphs and lists must not show in any result.

Without a GPU, the network is computed in plain PyTorch, except where a test says otherwise.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ase import Atoms, units

from mlff_triton import Engine, Prediction, TensorNet2
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.device_neighbors import Capacity
from mlff_triton.engine.device_steps import DeviceSteps, step_memory
from mlff_triton.engine.motion import Conditions
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.steps import TensorBatch, Units
from mlff_triton.errors import InputError, SimulationError, UnknownElementError
from mlff_triton.kernels.tensornet import operators as fused
from mlff_triton.kernels.tensornet.reference import operators as plain
from mlff_triton.kernels.tensornet2 import operators as charged
from mlff_triton.kernels.tensornet2.reference import operators as plain_charged
from mlff_triton.kernels.types.motion import Integration
from mlff_triton.neighbors.box import Box
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.support.charged import charged_model, crystal
from tests.support.device_steps import assert_equal, at_start, batch_of
from tests.support.tensornets import uncertain

pytestmark = [
    pytest.mark.filterwarnings("ignore:the cell has the charge"),
    pytest.mark.filterwarnings("ignore:each cell of the slab has the charge"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]

ORDERS = dict.fromkeys(("energy", "atom_energies", "charges"), 0)
ORDERS |= dict.fromkeys(("forces", "virial", "uncertainty"), 1)
SKIN = 0.5
PERIODIC = {"coulomb_cutoff": 2.5, "cutoff_upper": 3.0}  # one list for both cutoffs
TETRAHEDRON = [[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]
THIN = [True, True, False]
MESH = {"coulomb_cutoff": 5.0, "cutoff_upper": 3.0, "pme_error": 1e-3}
LONG = {"coulomb_cutoff": 4.0, "cutoff_upper": 3.0}


@cache
def model(*changes: tuple[str, object]) -> TensorNet2:
    return uncertain(charged_model(hidden_channels=32, **dict(changes)))


@cache
def truth(*changes: tuple[str, object]) -> Engine:
    return Engine(model(*changes), "cpu", "float64", "exact")


@pytest.fixture
def new_steps(device, graphs):
    """Return a function that makes steps whose network runs in kernels on a GPU only."""

    def make(changes, dtype=torch.float64, **options) -> DeviceSteps:
        options = {"operators": plain, "charged_operators": plain_charged} | options
        if device == "cuda":
            options |= {"operators": fused, "charged_operators": charged}
        p = Parameters.of(model(*changes.items()), torch.device(device), dtype)
        return DeviceSteps(p, p.cutoff, torch.device(device), dtype, SKIN, graphs, **options)

    return make


def check(steps: DeviceSteps, changes: dict[str, object], *systems: Atoms, charge=None) -> None:
    batch = batch_of(*systems, charge=charge)
    found, expected = steps.evaluate(batch), truth(*changes.items()).evaluate(batch)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        floor = 1e-2 * ORDERS[name]
        assert_close(found.tensors[name], tensor, ORDERS[name], steps.dtype, floor=floor)


@pytest.mark.parametrize("changes", [{}, PERIODIC, LONG, {"coulomb": False}], ids=str)
def test_batches(new_steps, changes):
    steps = new_steps(changes)
    systems = [random_cluster(5), Atoms("O"), random_cluster(3, seed=5)]
    if changes:
        systems.append(crystal())
    check(steps, changes, *systems, charge=[1, 0, -2, 1][: len(systems)])
    check(steps, changes, *systems, charge=[0, 1, 2, -1][: len(systems)])
    assert steps.n_builds == 2


def test_fused_kernels(device):
    backend = "triton-graph" if device == "cuda" else "triton"
    engine = Engine(model(("coulomb_cutoff", 4.0)), device, "float64", backend)
    atoms = crystal().copy()
    found = engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, True, charge=1)
    expected = truth(("coulomb_cutoff", 4.0)).evaluate(batch_of(atoms, charge=[1]))
    assert expected.virial.abs().max() > 1
    for name, tensor in expected.tensors.items():
        assert_close(found.tensors[name].cpu(), tensor, ORDERS[name])


def test_larger_systems_in_buffers_of_the_same_size(new_steps):
    """A launch for the largest system of one batch must not serve a batch with a larger one."""
    operators = SimpleNamespace(**vars(plain_charged))
    operators.coulomb_pairs = charged.coulomb_pairs  # which has a program per block of atoms
    steps = new_steps({}, charged_operators=operators)
    far = Atoms("O40", 2.5 * np.indices((5, 4, 2)).reshape(3, -1).T)  # more than one block
    sizes = [(39, 1), (20, 20), (37, 3)]
    for one, other in (sizes[1], sizes[0], sizes[2], sizes[1]):
        check(steps, {}, far[:one], far[40 - other :], charge=[1, -1])


def test_sorted_atoms_have_their_own_charges(new_steps):
    """Atoms of a large system are sorted by their position."""
    atoms = Atoms("CHON" * 10, 2.2 * np.indices((5, 4, 2)).reshape(3, -1).T)
    order = np.random.default_rng(0).permutation(40)
    check(new_steps({}), {}, atoms[order], charge=[2])


@pytest.mark.parametrize("changes", [{}, LONG], ids=str)
def test_moving_atoms(new_steps, rng, changes):
    steps, atoms = new_steps(changes), crystal().copy() if changes else random_cluster(6)
    for _ in range(4):
        atoms.positions += rng.uniform(-0.1, 0.1, atoms.positions.shape)
        check(steps, changes, atoms, charge=[-1])
    assert steps.n_builds < 4
    atoms.positions += SKIN * rng.uniform(-1, 1, atoms.positions.shape)
    check(steps, changes, atoms, charge=[-1])


def test_rows_too_short_lose_nothing(new_steps):
    """Atoms collapse until all are neighbors, first in the longer list and then in the other."""
    steps, atoms = new_steps(LONG, capacity=Capacity(first=4, multiple=4)), random_cluster(14)
    for scale in (3.0, 1.3, 0.6, 3.0):
        check(steps, LONG, Atoms(atoms.numbers, scale * atoms.positions))


def test_gives_the_same_bits_again(new_steps):
    batch = batch_of(random_cluster(7), random_cluster(4), charge=[1, 0])
    runs = [new_steps({}, torch.float32).evaluate(batch) for _ in range(2)]
    assert runs[0].charges is not None
    assert_equal(*runs)


def test_resident_systems(new_steps, device):
    steps, atoms = new_steps(LONG), crystal().copy()
    batch = Batch.of(atoms.numbers, np.zeros((24, 3)), atoms.cell.array, True, charge=1)
    step = steps.resident(batch, Units())
    expected = truth(*LONG.items()).evaluate(batch_of(atoms, charge=[1]))
    energy, forces = step(torch.tensor(atoms.positions, device=device), None)
    assert_close(energy, expected.energy[0], 0)
    assert_close(forces.cpu(), expected.forces, 1)
    with pytest.raises(InputError, match="less than twice the Coulomb cutoff"):
        step(torch.tensor(atoms.positions, device=device), torch.eye(3) * 7.0)


def test_queued_batches(new_steps, device):
    steps, atoms = new_steps({}), random_cluster(6)

    numbers = torch.tensor(atoms.numbers, device=device)
    cell, system = torch.zeros(1, 3, 3, device=device), torch.zeros_like(numbers)
    charge_of = {charge: torch.tensor([charge], device=device) for charge in (2.0, -1.0)}

    def queue(charge: float) -> Prediction:
        positions = torch.tensor(atoms.positions, device=device)
        given = numbers, positions, cell, False, system, charge_of[charge]
        return steps.queue(TensorBatch(*given))

    for charge in charge_of:
        found = queue(charge)
        expected = truth().evaluate(batch_of(atoms, charge=[charge]))
        for name, tensor in expected.tensors.items():
            assert_close(found.tensors[name].cpu(), tensor, ORDERS[name])
    atoms.positions[2] = np.nan
    assert queue(-1.0).charges.isnan().all()


def test_queued_boxes_that_shrink_too_far(new_steps, device):
    """The host does not see the cell, so the results are NaN."""
    steps, atoms = new_steps(LONG), crystal()
    numbers = torch.tensor(atoms.numbers, device=device)
    system, pbc = torch.zeros_like(numbers), torch.ones(1, 3, dtype=torch.bool, device=device)
    for scale, is_valid in ((1.0, True), (0.96, False), (1.02, True)):
        cell = torch.tensor(atoms.cell.array[None] * scale, device=device)
        positions = torch.tensor(atoms.positions * scale, device=device)
        found = steps.queue(TensorBatch(numbers, positions, cell, pbc, system, None))
        for tensor in found.tensors.values():
            assert tensor.isfinite().all() if is_valid else tensor.isnan().all()


def test_too_few_slots_of_the_shorter_list(new_steps, device):
    """Four atoms are neighbors in the longer list, and then come so close that they are in both."""
    steps, corners = new_steps(LONG, capacity=Capacity(2, 2)), torch.tensor(TETRAHEDRON).double()
    numbers, system = torch.full((4,), 8, device=device), torch.zeros(4, dtype=int, device=device)
    cell = torch.zeros(1, 3, 3, device=device)

    def queue(length: float) -> Prediction:
        positions = (length / 8**0.5 * corners).to(device)
        return steps.queue(TensorBatch(numbers, positions, cell, False, system, None))

    assert queue(3.9).energy.isfinite().all()
    assert queue(2.7).energy.isnan().all()
    with pytest.raises(SimulationError, match="3 neighbors, more than its 2"):
        queue(2.7)
    assert queue(2.7).energy.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "pbc"), [({}, False), (PERIODIC, True), (MESH, True), (MESH, THIN)], ids=str
)
def test_dynamics(new_steps, changes, pbc):
    """Energies and forces after some steps are those of where the atoms are then."""
    atoms = crystal().copy() if changes else random_cluster(5)
    atoms.pbc = pbc
    cell = Box.of(atoms.cell.array, pbc).cell[None]
    state = at_start(atoms.positions, np.full((len(atoms), 3), 0.02), cell)
    stage = Conditions(
        Integration(0.5 * units.fs),
        np.tile([0.025, 1e-5], (1, 1)),
        np.zeros(1, dtype=np.int32),
        np.full(1, 3, dtype=np.int32),
        None,
        None,
    )
    dynamics = new_steps(changes).dynamics(batch_of(atoms, charge=[1]), atoms.get_masses())
    dynamics.begin(state, stage, is_continued=False)
    dynamics.queue(4, is_observed=True)
    seen = dynamics.collect()
    assert np.abs(seen.state.positions - atoms.positions).max() > 1e-3
    atoms.positions = seen.state.positions
    expected = truth(*changes.items()).evaluate(batch_of(atoms, charge=[1]))
    assert_close(torch.tensor(seen.energy), expected.energy, 0)
    assert_close(torch.tensor(seen.forces), expected.forces, 1)
    if pbc == THIN:
        seen.state.positions[0, 2] += 30
        with pytest.raises(InputError, match="the slab has become too thick"):
            dynamics._checked(seen)  # as after a block in which an atom left
    elif changes == MESH:
        large = replace(seen, state=replace(seen.state, cell=seen.state.cell * 1.5))
        with pytest.raises(InputError, match="stretched the cell"):
            dynamics._checked(large)  # as after a block with a barostat
    elif changes:
        shrunk = replace(seen, state=replace(seen.state, cell=seen.state.cell * 0.6))
        with pytest.raises(InputError, match="less than twice the Coulomb cutoff"):
            dynamics._checked(shrunk)  # as after a block with a barostat


def test_boxes_must_be_large_enough(new_steps):
    small = random_crystal(4, "small")
    for changes, message in (({}, "cannot be periodic"), (LONG, "less than twice the Coulomb")):
        with pytest.raises(InputError, match=message):
            new_steps(changes).evaluate(batch_of(small))


def test_heights_of_boxes_are_those_of_the_host(rng):
    p = Parameters.of(model(*LONG.items()), torch.device("cpu"), torch.float64)
    cells = 8.3 * np.eye(3) + rng.normal(0, 0.6, (40, 3, 3))
    boxes = [Box.of(cell, rng.integers(0, 2, 3).astype(bool)) for cell in cells]
    cell, pbc = (torch.tensor(np.stack([getattr(b, n) for b in boxes])) for n in ("cell", "pbc"))
    found = p.charges.is_too_low(cell, pbc.to(torch.uint8))
    assert 0 < int(found.sum()) < 40
    for box, is_too_low in zip(boxes, found, strict=True):
        with pytest.raises(InputError, match="twice") if is_too_low else nullcontext():
            p.check_box(box)


def test_memory_of_long_lists():
    short = step_memory(1000, 128, 2, torch.float32)
    assert step_memory(1000, 128, 2, torch.float32, 800) - short == 800 * 1000 * 48


def test_meshes(new_steps):
    """Batches of any cells, smaller ones than the cutoff included."""
    steps, kinds = new_steps(MESH), [(5, "triclinic"), (1, "cubic"), (3, "small")]
    systems = [random_crystal(n, kind, seed=n) for n, kind in kinds]
    for charge in ([0, 1, -2], [1, 0, 1]):
        check(steps, MESH, *systems, charge=charge)
    with pytest.raises(InputError, match="needs a periodic cell"):
        steps.evaluate(batch_of(random_cluster(3)))


def test_meshes_of_slabs(new_steps):
    """They may become thicker, and cells that are periodic in three directions may follow."""
    steps, thick = new_steps(MESH), random_crystal(6, "slab", seed=3)
    thick.positions[0, 2] += 30
    for atoms in (random_crystal(6, "slab", seed=3), thick, crystal()):
        check(steps, MESH, atoms, charge=[1])
    with pytest.raises(InputError, match="in batches of their own"):
        steps.evaluate(batch_of(thick, crystal()))
    check(steps, MESH, thick, charge=[0])


def test_meshes_of_cells_that_change(new_steps):
    """A mesh stays until a cell outgrows it, so that captured steps are seldom captured again."""
    steps, atoms = new_steps(MESH), crystal().copy()
    steps.evaluate(batch_of(atoms))
    (state,) = (buffers._state for buffers in steps._batches.values())
    meshes = [state._mesh.parameters.mesh]
    for scale in (0.97, 1.02, 1.3, 1.25):
        other = atoms.copy()
        other.set_cell(scale * atoms.cell.array, scale_atoms=True)
        found, expected = (
            engine.evaluate(batch_of(other)) for engine in (steps, truth(*MESH.items()))
        )
        assert_close(found.charges, expected.charges, 0)
        assert (found.forces - expected.forces).norm() < 1e-3 * expected.forces.norm()
        meshes.append(state._mesh.parameters.mesh)
    assert meshes[0] == meshes[1]
    assert meshes[3] == meshes[4]
    assert np.prod(meshes[3]) > np.prod(meshes[0])


def test_meshes_give_the_same_bits_again(new_steps):
    batch = batch_of(crystal(), charge=[1])
    runs = [new_steps(MESH, torch.float32).evaluate(batch) for _ in range(2)]
    assert_equal(*runs)


def test_meshes_of_resident_systems(new_steps, device):
    """Steps see a new cell before the host, and are repeated if it has outgrown its mesh."""
    steps, atoms = new_steps(MESH), crystal().copy()
    batch = Batch.of(atoms.numbers, np.zeros((24, 3)), atoms.cell.array, True, charge=1)
    step = steps.resident(batch, Units())
    for scale in (1.0, 1.4):
        atoms.set_cell(scale * crystal().cell.array, scale_atoms=True)
        expected = truth(*MESH.items()).evaluate(batch_of(atoms, charge=[1]))
        given = (torch.tensor(a, device=device) for a in (atoms.positions, atoms.cell.array))
        energy, forces = step(*given)
        assert_close(energy, expected.energy[0], 0)
        assert_close(forces.cpu(), expected.forces, 1)


def test_batches_with_meshes_are_not_queued(new_steps, device):
    """The host has to see each cell, so `Engine.queue` computes them as `Engine.compute` does."""
    steps, atoms = new_steps(MESH), crystal()
    numbers = torch.tensor(atoms.numbers, device=device)
    cell, positions = (torch.tensor(a, device=device) for a in (atoms.cell.array, atoms.positions))
    system = torch.zeros_like(numbers)
    given = TensorBatch(numbers, positions, cell[None], True, system, None)
    assert steps.queue(given) is None


@pytest.mark.parametrize("changes", [LONG, MESH], ids=str)
def test_batches_that_fail_leave_nothing_behind(new_steps, changes):
    """They have other systems, cells or elements in buffers of the same size."""
    steps, good = new_steps(changes), crystal()
    expected = steps.evaluate(batch_of(good, charge=[1]))
    for scale, number, error in ((300, 1, InputError), (2, 79, UnknownElementError)):
        if error is InputError and "pme_error" not in changes:
            continue
        bad = good.copy()
        bad.set_cell(scale * good.cell.array, scale_atoms=scale < 3)
        bad.numbers[0] = number
        with pytest.raises(error):
            steps.evaluate(batch_of(bad))
        assert_equal(steps.evaluate(batch_of(good, charge=[1])), expected)


def test_another_division_into_systems_that_fails_leaves_nothing_behind(new_steps):
    steps, atoms = new_steps({}), random_cluster(6)
    good, bad = [atoms[:2], atoms[2:]], [atoms[:3], atoms[3:].copy()]
    expected = steps.evaluate(batch_of(*good, charge=[1, 0]))
    bad[1].numbers[0] = 79
    with pytest.raises(UnknownElementError):
        steps.evaluate(batch_of(*bad, charge=[1, 0]))
    assert_equal(steps.evaluate(batch_of(*good, charge=[1, 0])), expected)
