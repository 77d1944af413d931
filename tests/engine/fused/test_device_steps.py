"""Steps that stay on a GPU: what they keep from one call to the next must never show.

Without a GPU the neighbor rows and the edges go through Triton's interpreter. So does the network
in a few tests; the others are about the rows, and compute the network in plain PyTorch there.
"""

from __future__ import annotations

import csv
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton.engine import device_steps as device_module
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.device_steps import DeviceState, DeviceSteps, step_memory
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.host_steps import Units
from mlff_triton.engine.parameters import Parameters
from mlff_triton.errors import BackendError, InputError, OverlappingAtomsError, UnknownElementError
from mlff_triton.kernels.tensornet.reference import operators as plain_torch
from mlff_triton.model.prediction import Prediction
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.support.tensornets import model_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]

ROOT = Path(__file__).resolve().parents[3]
CUTOFF, SKIN = 3.0, 0.5
Steps = Callable[..., DeviceSteps]


@cache
def model(num_layers: int = 1) -> TensorNet:
    return model_of(hidden_channels=32, num_rbf=8, num_layers=num_layers, cutoff_upper=CUTOFF)


@cache
def parameters(device: str, dtype: torch.dtype) -> Parameters:
    return Parameters.of(model(), torch.device(device), dtype)


@cache
def truth() -> Engine:
    return Engine(model(), "cpu", "float64", "exact")


@pytest.fixture(params=[False, True], ids=["launches", "graph"])
def graphs(request: pytest.FixtureRequest, device: str) -> bool:
    if request.param and device != "cuda":
        pytest.skip("graphs need a GPU")
    return request.param


@pytest.fixture
def fused(device: str, graphs: bool) -> Steps:
    """Makes steps of the tiny model, whose network goes through the kernels everywhere."""

    def make(dtype: torch.dtype = torch.float64, skin: float = SKIN) -> DeviceSteps:
        place = torch.device(device)
        return DeviceSteps(parameters(device, dtype), CUTOFF, place, dtype, skin, graphs)

    return make


@pytest.fixture
def new_steps(fused: Steps, device: str, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Makes steps of the tiny model."""
    if device == "cpu":
        monkeypatch.setattr(device_module, "kernels", plain_torch)
    return fused


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of atoms at each build of neighbor rows."""
    counts = []
    build = DeviceState._build

    def counted(self: DeviceState) -> None:
        counts.append(len(self._system))
        build(self)

    monkeypatch.setattr(DeviceState, "_build", counted)
    return counts


def batch_of(*systems: Atoms, charge: object = None) -> Batch:
    return Batch.of(
        np.concatenate([a.numbers for a in systems]),
        np.concatenate([a.positions for a in systems]),
        np.stack([a.cell.array for a in systems]),
        np.stack([a.pbc for a in systems]),
        np.repeat(np.arange(len(systems)), [len(a) for a in systems]),
        charge,
    )


def assert_true(found: Prediction, batch: Batch, dtype: torch.dtype = torch.float64) -> None:
    expected = truth().evaluate(batch)
    orders = {"energy": 0, "atom_energies": 0, "forces": 1, "virial": 1}
    for name, order in orders.items():
        floor = 1e-2 * order  # forces between atoms near the cutoff, or without neighbors, are tiny
        assert_close(getattr(found, name), getattr(expected, name), order, dtype, floor=floor)


def assert_equal(found: Prediction, expected: Prediction) -> None:
    for name, tensor in vars(found).items():
        assert torch.equal(tensor, getattr(expected, name)), name


def check(steps: DeviceSteps, *systems: Atoms, charge: object = None) -> None:
    batch = batch_of(*systems, charge=charge)
    assert_true(steps.evaluate(batch), batch, steps.dtype)


def moved(atoms: Atoms, shifts: object) -> Atoms:
    copy = atoms.copy()
    copy.positions += shifts
    return copy


def crystal(n_atoms: int, kind: str) -> Atoms:
    return random_crystal(n_atoms, kind, min_distance=2.0)  # few images: interpreters are slow


def squeezed(atoms: Atoms, strain: object) -> Atoms:
    copy = atoms.copy()
    copy.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
    return copy


def test_engines_agree_with_the_exact_module(device, dtype):
    backend = "triton-graph" if device == "cuda" else "triton"
    engine = Engine(model(2), device, str(dtype).removeprefix("torch."), backend)
    exact = Engine(model(2), "cpu", "float64", "exact")
    atoms = random_cluster(2)
    found = engine.compute(atoms.numbers, atoms.positions, charge=1)
    assert {t.device.type for t in vars(found).values()} == {device}
    expected = exact.compute(atoms.numbers, atoms.positions, charge=1)
    for name, order in {"energy": 0, "atom_energies": 0, "forces": 1, "virial": 1}.items():
        assert_close(getattr(found, name), getattr(expected, name), order, dtype)


def test_results_do_not_depend_on_when_rows_were_built(new_steps, builds):
    """To the bit, though rows are built in the order that atoms have in space."""
    atoms = crystal(16, "cubic")  # two bins: an atom that crosses over changes the order
    atoms.set_cell([7.2, 6.0, 6.0], scale_atoms=True)
    atoms.wrap()
    first = int(np.argmin(np.abs(atoms.positions[:, 0] - 3.6)))
    atoms.positions[first, 0] = 3.55
    later = moved(atoms, np.where(np.arange(16)[:, None] == first, [0.1, 0.0, 0.0], 0.0))
    veteran, novice = new_steps(torch.float32), new_steps(torch.float32)
    veteran.evaluate(batch_of(atoms))
    batch = batch_of(later)
    kept, fresh = veteran.evaluate(batch), novice.evaluate(batch)
    assert builds == [16, 16]
    orders = [next(iter(steps._states.values()))._rows.order for steps in (veteran, novice)]
    assert not torch.equal(*orders)
    assert_equal(kept, fresh)
    assert_true(kept, batch, torch.float32)


def test_runs_agree_to_the_bit(fused):
    batch = batch_of(random_cluster(2), Atoms("C"))
    steps = fused(torch.float32)
    first, second = steps.evaluate(batch), steps.evaluate(batch)
    assert_equal(first, second)
    assert_equal(fused(torch.float32).evaluate(batch), first)


def test_rows_are_kept_while_they_hold(new_steps, builds):
    steps, atoms = new_steps(), random_cluster(7)
    rng = np.random.default_rng(0)
    check(steps, atoms)
    for _ in range(3):
        check(steps, moved(atoms, rng.uniform(-0.14, 0.14, (7, 3))))  # at most 0.243 Å
    assert builds == [7]


def test_rows_are_built_anew_when_atoms_have_moved(new_steps, builds):
    steps = new_steps()
    for step, distance in enumerate((4.0, 3.6, 2.9, 2.0, 5.0)):
        check(steps, Atoms("CO", [[0, 0, 0], [0, 0, distance]]))
        assert len(builds) == step + 1


@pytest.mark.parametrize("distance", [3.01, 2.99])
def test_no_pair_slips_in_unseen(new_steps, builds, distance):
    """Both atoms move as far as they may, from just beyond the reach of the rows."""
    steps = new_steps()
    check(steps, Atoms("CO", [[0, 0, 0], [0, 0, 3.501]]))
    approach = (3.501 - distance) / 2
    check(steps, Atoms("CO", [[0, 0, approach], [0, 0, 3.501 - approach]]))
    assert len(builds) == 1 + (approach > SKIN / 2)


def test_a_cell_that_changes_a_little_needs_no_new_rows(new_steps, builds):
    steps, atoms = new_steps(), crystal(6, "triclinic")
    shear = np.array([[0, 0.01, 0], [0, 0, -0.01], [0, 0, 0]])
    for strain in (np.zeros((3, 3)), -0.02 * np.eye(3), 0.05 * np.eye(3), shear):
        check(steps, squeezed(atoms, strain))
    assert len(builds) == 1


@pytest.mark.parametrize("kind", ["small", "rod"])
def test_a_cell_that_changes_much_does(new_steps, builds, kind):
    steps, atoms = new_steps(), crystal(3, kind)
    for strain in (0.0, -0.2):
        check(steps, squeezed(atoms, strain * np.eye(3)))
    assert len(builds) == 2


def test_a_cell_may_change_around_its_atoms(new_steps):
    steps, atoms = new_steps(), crystal(3, "triclinic")
    for factor in (1.0, 1.02, 1.3):
        stretched = atoms.copy()
        stretched.set_cell(atoms.cell.array * factor)
        check(steps, stretched)


def test_periodic_directions_may_change(new_steps, builds):
    steps, atoms = new_steps(), crystal(3, "triclinic")
    for pbc in (True, [True, True, False], False, True):
        atoms.pbc = pbc
        check(steps, atoms)
    assert len(builds) == 4


def test_atoms_may_lie_outside_their_cell(new_steps):
    atoms = crystal(5, "triclinic")
    images = np.array([[0, 0, 0], [3, 0, -1], [0, -20, 0], [1, 1, 1], [0, 0, 40]])
    check(new_steps(), moved(atoms, images @ atoms.cell.array))


def test_rows_too_short_lose_nothing(new_steps, monkeypatch):
    """Atoms fall together: every time there are more neighbors than there is room for."""
    monkeypatch.setattr(device_module, "FIRST_CAPACITY", 4)
    monkeypatch.setattr(device_module, "CAPACITY_STEP", 4)
    steps, atoms, capacities = new_steps(), random_cluster(14), []
    for scale in (3.0, 1.0, 0.6, 3.0):
        check(steps, Atoms(atoms.numbers, scale * atoms.positions))
        capacities.append(next(iter(steps._states.values()))._rows.senders.shape[1])
    assert capacities[0] == 4 < capacities[1] < capacities[2] == capacities[3]


def test_composition_may_change(new_steps):
    steps, atoms = new_steps(), random_cluster(6)
    for symbols in ("CHNOCH", "OOOOOO", "CHNOCH"):
        atoms.set_chemical_symbols(list(symbols) if symbols.isupper() else symbols)
        check(steps, atoms)


def test_charges_may_change(new_steps):
    steps, atoms = new_steps(), random_cluster(5)
    for charge in (0, 2, -1):
        check(steps, atoms, charge=charge)


def test_systems_may_be_divided_anew(new_steps):
    steps, atoms = new_steps(), random_cluster(6)
    for first in (2, 4, 1):
        check(steps, atoms[:first], atoms[first:], charge=[1, 0])


def test_batches(new_steps, builds):
    steps = new_steps()
    for shift in (0.0, 0.5):
        systems = [
            random_cluster(4),
            Atoms("C"),
            crystal(2, "small"),
            crystal(3, "slab"),
            Atoms("CO", [[0, 0, 0], [50, 0, 0]]),
        ]
        systems[3] = moved(systems[3], np.array([[shift, 0, 0], [0, 0, 0], [0, 0, -shift]]))
        check(steps, *systems, charge=[1, 0, -2, 0, 1])
    assert builds == [12, 12]


def test_one_system_of_a_batch_makes_rows_stale(new_steps, builds):
    steps = new_steps()
    pairs = [Atoms("CO", [[0, 0, 0], [0, 0, 1.5]]), Atoms("CO", [[0, 0, 0], [0, 0, 3.6]])]
    check(steps, *pairs)
    check(steps, pairs[0], Atoms("CO", [[0, 0, 0], [0, 0, 2.0]]))
    assert len(builds) == 2


def test_several_sizes_in_turn(new_steps, monkeypatch, builds):
    monkeypatch.setattr(device_module, "KEPT_GRAPHS", 2)
    steps = new_steps()
    for n_atoms in (1, 2, 3, 1, 3, 2, 2):
        check(steps, random_cluster(n_atoms))
        assert len(steps._states) <= 2
    assert builds == [1, 2, 3, 1, 2]


def test_without_a_skin_rows_always_hold(new_steps):
    steps, atoms = new_steps(skin=0.0), crystal(3, "slab")
    rng = np.random.default_rng(0)
    for scale in (0.0, 0.3):
        check(steps, moved(atoms, rng.uniform(-scale, scale, (3, 3))))


def test_results_are_copies(new_steps):
    steps, atoms = new_steps(), random_cluster(4)
    first = steps.evaluate(batch_of(atoms))
    kept = {name: tensor.clone() for name, tensor in vars(first).items()}
    second = steps.evaluate(batch_of(moved(atoms, [[0.1, 0, 0]] + [[0, 0, 0]] * 3)))
    assert not torch.equal(second.forces, first.forces)
    assert_equal(first, Prediction(**kept))


def test_prepared_steps(new_steps):
    steps, batch = new_steps(), batch_of(random_cluster(4))
    run = steps.prepare(batch)
    for _ in range(2):
        found = Prediction(*(tensor.cpu() for tensor in vars(run()).values()))
        assert_true(found, batch)


class Resident:
    """Steps of a resident system, compared to the bit with those of a batch by other steps."""

    def __init__(self, make: Steps, atoms: Atoms, dtype: torch.dtype = torch.float64) -> None:
        self.steps, self.others = make(dtype), make(dtype)
        self.run = self.steps.resident(batch_of(atoms), Units())

    def tensor(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self.steps.device)

    def check(self, atoms: Atoms, cell: bool = True) -> None:
        box = self.tensor(atoms.cell.array) if cell else None
        energy, forces = self.run(self.tensor(atoms.positions), box)
        expected = self.others.evaluate(batch_of(atoms))
        assert (energy.shape, energy.device.type) == ((), "cpu")
        assert forces.device.type == self.steps.device.type
        assert torch.equal(energy, expected.energy[0])
        assert torch.equal(forces.cpu(), expected.forces)


@pytest.mark.parametrize("kind", ["triclinic", "slab"])
def test_resident_atoms_may_move(new_steps, kind):
    atoms = crystal(3, kind)
    resident = Resident(new_steps, atoms, torch.float32)
    rng = np.random.default_rng(0)
    for size in (0.1, 0.6):
        resident.check(moved(atoms, rng.uniform(-size, size, (3, 3))))
    assert resident.steps.n_builds > 1


def test_resident_atoms_need_no_cell(new_steps):
    atoms = random_cluster(4)
    resident = Resident(new_steps, atoms)
    for shift in (0.0, 0.2):
        resident.check(moved(atoms, [[shift, 0, 0]] + [[0, 0, 0]] * 3), cell=False)


def test_the_fused_network_of_a_resident_system(fused):
    Resident(fused, crystal(2, "small"), torch.float32).check(crystal(2, "small"))


@pytest.mark.parametrize("kind", ["triclinic", "slab"])
def test_resident_cells_may_change_at_every_step(new_steps, kind):
    """Not only the first of them is another than the one that the system was made with."""
    atoms = crystal(3, kind)
    shear = np.array([[0, 0.01, 0], [0, 0, -0.01], [0, 0, 0]])
    resident = Resident(new_steps, atoms)
    for strain in (0.01 * np.eye(3), shear, -0.02 * np.eye(3)):
        resident.check(squeezed(atoms, strain))
    assert resident.steps.n_builds == 1
    resident.check(squeezed(atoms, -0.2 * np.eye(3)))
    assert resident.steps.n_builds == 2


def test_resident_cells_may_change_around_their_atoms(new_steps):
    atoms = crystal(3, "triclinic")
    resident = Resident(new_steps, atoms)
    for factor in (1.0, 1.3):
        stretched = atoms.copy()
        stretched.set_cell(atoms.cell.array * factor)
        resident.check(stretched)
    resident.check(stretched, cell=False)


@pytest.mark.parametrize("distance", [3.01, 2.99])
def test_no_resident_pair_slips_in_through_the_cell(new_steps, distance):
    """Two atoms stay where they are, and an image comes near from beyond the reach of the rows."""
    atoms = Atoms("CO", [[0, 0, 0], [10, 0, 0]], cell=np.diag([13.501, 20, 20]), pbc=True)
    resident = Resident(new_steps, atoms)
    resident.check(atoms)
    atoms.set_cell(np.diag([10 + distance, 20, 20]))
    resident.check(atoms)
    assert resident.steps.n_builds == 2


def test_resident_rows_too_short_lose_nothing(new_steps, monkeypatch):
    monkeypatch.setattr(device_module, "FIRST_CAPACITY", 4)
    monkeypatch.setattr(device_module, "CAPACITY_STEP", 4)
    atoms = random_cluster(10)
    resident = Resident(new_steps, atoms)
    for scale in (3.0, 0.7):
        resident.check(Atoms(atoms.numbers, scale * atoms.positions), cell=False)


def test_resident_systems_in_other_units(new_steps):
    """In quarters and sixteenths, so that nothing is rounded."""
    atoms = crystal(3, "slab")
    steps, units = new_steps(), Units(length=4.0, energy=0.0625)
    run, plain = steps.resident(batch_of(atoms), units), steps.resident(batch_of(atoms), Units())
    for strain in (0.0, 0.015625):
        given = squeezed(atoms, strain * np.eye(3))
        positions = torch.tensor(given.positions, device=steps.device)
        cell = torch.tensor(given.cell.array, device=steps.device)
        energy, forces = run(positions / 4, cell / 4)
        expected_energy, expected_forces = plain(positions, cell)
        assert torch.equal(energy, 16 * expected_energy)
        assert torch.equal(forces, 64 * expected_forces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resident_systems_take_any_floats(new_steps, dtype):
    atoms = crystal(3, "triclinic")
    resident = Resident(new_steps, atoms)
    positions, cell = (resident.tensor(a).to(dtype) for a in (atoms.positions, atoms.cell.array))
    energy, forces = resident.run(positions.requires_grad_(), cell)
    rounded = atoms.copy()
    rounded.set_cell(cell.double().cpu().numpy())
    rounded.positions = positions.detach().double().cpu().numpy()
    expected = resident.others.evaluate(batch_of(rounded))
    assert (energy.dtype, forces.dtype) == (torch.float64, dtype)
    assert not forces.requires_grad
    assert torch.equal(energy, expected.energy[0])
    assert torch.equal(forces.cpu(), expected.forces.to(dtype))


def test_resident_forces_are_the_callers_to_keep(new_steps):
    atoms = random_cluster(4)
    resident = Resident(new_steps, atoms)
    energy, forces = resident.run(resident.tensor(atoms.positions), None)
    kept = energy.clone(), forces.clone()
    resident.check(moved(atoms, [[0.1, 0, 0]] + [[0, 0, 0]] * 3), cell=False)
    assert torch.equal(energy, kept[0])
    assert torch.equal(forces, kept[1])


def test_resident_and_other_systems_do_not_meet(new_steps):
    """Of one size, and of one engine."""
    first, second = random_cluster(4), random_cluster(4, seed=1)
    residents = [Resident(new_steps, first), Resident(new_steps, second)]
    residents[1].run = residents[0].steps.resident(batch_of(second), Units())
    residents[1].others = residents[0].steps
    for _ in range(2):
        residents[0].check(first, cell=False)
        residents[1].check(second, cell=False)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_resident_atoms_that_are_nowhere_are_named(new_steps, value):
    atoms = crystal(3, "triclinic")
    resident = Resident(new_steps, atoms)
    resident.check(atoms)
    lost = atoms.copy()
    lost.positions[1, 2] = value
    for box in (atoms.cell.array, 1.01 * atoms.cell.array):
        with pytest.raises(InputError, match=r"atom 1 is NaN or infinite \(1 such atoms\)"):
            resident.run(resident.tensor(lost.positions), resident.tensor(box))
        resident.check(atoms)


def test_resident_atoms_at_one_point_are_named(new_steps):
    resident = Resident(new_steps, Atoms("HCO"))
    apart, together = (Atoms("HCO", [[-1, 0, 0], [0, 0, 0], [0, 0, z]]) for z in (1.2, 1e-4))
    for _ in range(2):
        with pytest.raises(OverlappingAtomsError, match=r"atoms \[1, 2\] have come to one point"):
            resident.run(resident.tensor(together.positions), None)
        resident.check(apart, cell=False)


@pytest.mark.parametrize("first", [False, True])
def test_impossible_resident_cells_are_refused(new_steps, first):
    atoms = crystal(3, "triclinic")
    resident = Resident(new_steps, atoms)
    if not first:
        resident.check(atoms)
    reasons = {np.nan: "holds NaN", 0.0: "no independent cell vector", 1e-3: "check its units"}
    for factor, reason in reasons.items():
        with pytest.raises(InputError, match=reason):
            resident.run(
                resident.tensor(atoms.positions), resident.tensor(factor * atoms.cell.array)
            )
        resident.check(atoms)


def test_too_little_memory_for_a_resident_system(new_steps, monkeypatch):
    atoms = crystal(3, "cubic")
    resident = Resident(new_steps, atoms)

    def run_out(_):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(DeviceState, "_step", run_out)
        with pytest.raises(BackendError, match=r"3 atoms need about .* GiB of GPU memory"):
            resident.run(resident.tensor(atoms.positions), None)
    resident.check(atoms)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_resident_steps_wait_once(new_steps, monkeypatch):
    """The second wait, in a new cell, is for the status alone."""
    atoms = crystal(16, "triclinic")
    resident = Resident(new_steps, atoms)
    positions, cell = resident.tensor(atoms.positions), resident.tensor(atoms.cell.array)
    resident.run(positions, cell)
    waits = []
    synchronize = torch.cuda.Stream.synchronize

    def counted(stream: torch.cuda.Stream) -> None:
        waits.append(stream)
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        synchronize(stream)
        torch.cuda.set_sync_debug_mode(mode)

    monkeypatch.setattr(torch.cuda.Stream, "synchronize", counted)
    try:
        torch.cuda.set_sync_debug_mode("error")  # raises wherever else the host would wait
        resident.run(positions + 0.01, cell)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1
    resident.run(positions, 1.001 * cell)
    assert len(waits) == 2
    assert resident.steps.n_builds == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_resident_steps_run_in_any_thread_and_stream(new_steps):
    atoms = crystal(16, "triclinic")
    resident = Resident(new_steps, atoms)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for shift in (0.0, 0.1, 1.0):
                    resident.check(moved(atoms, [[shift, 0, 0]] + [[0, 0, 0]] * 15))
        except BaseException as error:  # noqa: BLE001 (raised below, in the thread of the test)
            errors.append(error)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not errors
        resident.check(atoms)


def broken(batch: Batch, atom: int, value: float) -> Batch:
    """A batch that was not checked, as from a simulation that has blown up."""
    positions = batch.positions.copy()
    positions[atom, 1] = value
    return Batch(batch.numbers, positions, batch.boxes, batch.system, batch.charge)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_atoms_that_are_nowhere_are_named(new_steps, value):
    steps, good = new_steps(), batch_of(random_cluster(3), random_cluster(2, seed=1))
    expected = steps.evaluate(good)
    with pytest.raises(InputError, match=r"atom 3 is NaN or infinite \(1 such atoms\)"):
        steps.evaluate(broken(good, 3, value))
    assert_equal(steps.evaluate(good), expected)


def test_atoms_that_are_nowhere_from_the_first(new_steps):
    good = batch_of(crystal(3, "triclinic"))
    steps = new_steps()
    with pytest.raises(InputError, match=r"not finite|NaN or infinite"):
        steps.evaluate(broken(good, 1, np.nan))
    assert_true(steps.evaluate(good), good)


def test_atoms_at_one_point_are_named(new_steps):
    steps = new_steps()
    apart, together = (
        batch_of(Atoms("HCO", [[-1, 0, 0], [0, 0, 0], [0, 0, z]])) for z in (1.2, 1e-4)
    )
    for _ in range(2):
        with pytest.raises(OverlappingAtomsError, match=r"atoms \[1, 2\] have come to one point"):
            steps.evaluate(together)
        assert_true(steps.evaluate(apart), apart)


def test_atoms_at_one_point_in_rows_that_hold(new_steps, builds):
    steps = new_steps()
    near, at_once = (batch_of(Atoms("CO", [[0, 0, 0], [0, 0, z]])) for z in (0.2, 0.0))
    expected = steps.evaluate(near)
    with pytest.raises(OverlappingAtomsError, match=r"atoms \[0, 1\]"):
        steps.evaluate(at_once)
    assert len(builds) == 1
    assert_equal(steps.evaluate(near), expected)


def test_refused_systems_leave_no_trace(new_steps):
    steps, atoms = new_steps(), crystal(3, "triclinic")
    good = batch_of(atoms)
    expected = steps.evaluate(good)
    strange = atoms.copy()
    strange.numbers[1] = 79
    with pytest.raises(UnknownElementError, match="79"):
        steps.evaluate(batch_of(strange))
    assert_equal(steps.evaluate(good), expected)
    with pytest.raises(InputError, match="too far outside their cell"):
        steps.evaluate(batch_of(moved(atoms, [[1e5, 0, 0], [0, 0, 0], [0, 0, 0]])))
    assert_equal(steps.evaluate(good), expected)
    tiny = atoms.copy()
    tiny.set_cell(atoms.cell.array * 1e-3)
    with pytest.raises(InputError, match="check its units"):
        steps.evaluate(batch_of(tiny))
    assert_equal(steps.evaluate(good), expected)


@pytest.mark.parametrize("skin", [-1.0, np.nan, np.inf])
def test_impossible_skins_are_refused(new_steps, skin):
    with pytest.raises(InputError, match="skin must be finite and not negative"):
        new_steps(skin=skin).evaluate(batch_of(random_cluster(2)))


@pytest.mark.parametrize("n_atoms", ["16384", "65536", "1000000"])
def test_memory_is_what_was_measured(n_atoms):
    with (ROOT / "benchmarks" / "results" / "step.csv").open(newline="") as file:
        rows = {row["case"]: row for row in csv.DictReader(file) if row["impl"] == "engine"}
    measured = float(rows[n_atoms]["peak_mib"]) * 2**20
    stated = step_memory(int(n_atoms), channels=128, layers=2, dtype=torch.float32)
    assert stated == pytest.approx(measured, rel=0.1)


def test_too_little_memory_says_what_is_needed(new_steps, monkeypatch):
    steps, atoms = new_steps(), crystal(3, "cubic")

    def run_out(_):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(DeviceState, "_step", run_out)
        with pytest.raises(BackendError, match=r"3 atoms need about .* GiB of GPU memory"):
            steps.evaluate(batch_of(atoms))
    check(steps, atoms)
