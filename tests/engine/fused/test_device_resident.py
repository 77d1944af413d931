"""Systems that stay on a GPU: their steps give the same bits as steps of batches."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.engine.device_neighbors import Capacity
from mlff_triton.engine.steps import Units
from mlff_triton.errors import BackendError, InputError, OverlappingAtomsError
from mlff_triton.testing import random_cluster
from tests.support.device_steps import (
    Failing,
    Recording,
    Resident,
    batch_of,
    crystal,
    moved,
    squeezed,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]


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
    """Each differs from the last one, and the first from that of the batch."""
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
    """Two atoms stay in place, and the cell brings an image near from outside the skin."""
    atoms = Atoms("CO", [[0, 0, 0], [10, 0, 0]], cell=np.diag([13.501, 20, 20]), pbc=True)
    resident = Resident(new_steps, atoms)
    resident.check(atoms)
    atoms.set_cell(np.diag([10 + distance, 20, 20]))
    resident.check(atoms)
    assert resident.steps.n_builds == 2


def test_resident_rows_too_short_lose_nothing(new_steps):
    """Capacities grow from 16, while those of the batches it is compared with stay at 64."""
    atoms = random_cluster(24)
    resident = Resident(new_steps, atoms, wrap=Recording, capacity=Capacity(first=16))
    for scale in (3.0, 0.6):
        resident.check(Atoms(atoms.numbers, scale * atoms.positions), cell=False)
    assert set(resident.steps.operators.capacities) == {16, 32}


def test_resident_systems_in_other_units(new_steps):
    """The units are powers of two, so that nothing is rounded."""
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
    """Systems of the same size and engine share nothing."""
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
        with pytest.raises(
            OverlappingAtomsError, match=r"atoms \[1, 2\] have come to the same point"
        ):
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


def test_too_little_memory_for_a_resident_system(new_steps):
    atoms = crystal(3, "cubic")
    resident = Resident(new_steps, atoms, wrap=Failing)
    with pytest.raises(BackendError, match=r"3 atoms need about .* GiB of GPU memory"):
        resident.run(resident.tensor(atoms.positions), None)
    resident.steps.operators.failing = False
    resident.check(atoms)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_resident_steps_wait_once(new_steps, monkeypatch):
    """In a new cell, they wait once more, for the status."""
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
        torch.cuda.set_sync_debug_mode("error")  # any other wait raises
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
        except BaseException as error:  # noqa: BLE001 (checked below, in the thread of the test)
            errors.append(error)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not errors
        resident.check(atoms)
