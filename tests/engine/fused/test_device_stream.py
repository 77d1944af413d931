"""Batches that a program keeps on a GPU: the same bits as computations, or NaN, without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton.engine.device_neighbors import Capacity
from mlff_triton.engine.device_steps import DeviceSteps
from mlff_triton.engine.steps import TensorBatch
from mlff_triton.errors import (
    DeviceMemoryError,
    InputError,
    OverlappingAtomsError,
    SimulationError,
    UnknownElementError,
)
from mlff_triton.model.prediction import Prediction
from mlff_triton.testing import random_cluster
from tests.support.device_steps import (
    CUTOFF,
    SKIN,
    Failing,
    MakeSteps,
    assert_equal,
    assert_true,
    batch_of,
    crystal,
    moved,
    squeezed,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]


@contextmanager
def never_waiting() -> Iterator[None]:
    """Let PyTorch raise an error where it would wait for the GPU."""
    try:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")


class Program:
    """A program that keeps systems as tensors, and compares steps with computations."""

    def __init__(self, make: MakeSteps, *systems: Atoms, charge: object = None, **options) -> None:
        self.make, self.options = make, options
        self.steps, self.others = make(**options), make(**options)
        self.batch = batch_of(*systems, charge=charge)
        self.tensors = self.new_tensors()

    def tensor(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self.steps.device)

    def new_tensors(self) -> TensorBatch:
        batch = self.batch
        return TensorBatch(
            self.tensor(batch.numbers),
            self.tensor(batch.positions),
            self.tensor(np.stack([box.cell for box in batch.boxes])),
            self.tensor(np.stack([box.pbc for box in batch.boxes])),
            self.tensor(batch.system),
            self.tensor(batch.charge),
        )

    def replace(self, *systems: Atoms) -> None:
        """Replace positions and cells by those of the same systems elsewhere."""
        self.tensors = self.tensors._replace(
            positions=self.tensor(np.concatenate([a.positions for a in systems])),
            cell=self.tensor(np.stack([a.cell.array for a in systems])),
        )

    def run(self) -> Prediction:
        return self.steps.queue(self.tensors).map(Tensor.cpu)

    def run_without_waiting(self) -> Prediction:
        with never_waiting():
            prediction = self.steps.queue(self.tensors)
        return prediction.map(Tensor.cpu)

    def compute(self, *systems: Atoms) -> Prediction:
        return self.others.evaluate(batch_of(*systems, charge=self.batch.charge))

    @property
    def built_positions(self) -> Tensor:
        """Positions for which the neighbor matrix was built."""
        (stream,) = self.steps._streams.values()
        return stream._state.neighbors.matrix.positions.cpu().clone()


def systems_of(kinds: str) -> list[Atoms]:
    return [
        random_cluster(4) if k == "c" else crystal(3, {"t": "triclinic", "s": "slab"}[k])
        for k in kinds
    ]


def assert_nan(prediction: Prediction, systems: slice, atoms: slice) -> None:
    assert prediction.energy[systems].isnan().all()
    assert prediction.virial[systems].isnan().all()
    assert prediction.forces[atoms].isnan().all()
    assert prediction.atom_energies[atoms].isnan().all()


@pytest.mark.parametrize("kinds", ["c", "t", "s", "tc"])
def test_steps_give_the_bits_of_computations(new_steps, kinds):
    systems = systems_of(kinds)
    program = Program(new_steps, *systems)
    assert_equal(program.run(), program.compute(*systems))
    rng = np.random.default_rng(0)
    for size in (0.05, 0.05, 1.0):
        systems = [moved(a, rng.uniform(-size, size, a.positions.shape)) for a in systems]
        program.replace(*systems)
        assert_equal(program.run_without_waiting(), program.compute(*systems))


def test_the_fused_network(fused):
    atoms = crystal(2, "small")
    program = Program(fused, atoms, dtype=torch.float32)
    assert_equal(program.run(), program.compute(atoms))


def test_matrices_are_kept_while_they_hold(new_steps):
    atoms = crystal(3, "triclinic")
    program = Program(new_steps, atoms)
    program.run()
    built = program.built_positions
    program.replace(moved(atoms, [[0.4 * SKIN, 0, 0]] * 3))
    program.run_without_waiting()
    assert torch.equal(program.built_positions, built)
    program.replace(moved(atoms, [[0.6 * SKIN, 0, 0]] * 3))
    program.run_without_waiting()
    assert torch.equal(program.built_positions, program.tensors.positions.cpu())


def test_cells_may_change_at_every_step(new_steps):
    atoms = crystal(3, "triclinic")
    program = Program(new_steps, atoms)
    program.run()
    for strain in (0.01 * np.eye(3), [[0, 0.02, 0], [0, 0, 0], [0, 0, 0]], -0.2 * np.eye(3)):
        atoms = squeezed(atoms, strain)
        program.replace(atoms)
        assert_equal(program.run_without_waiting(), program.compute(atoms))


def test_open_vectors_do_not_matter(new_steps):
    atoms = crystal(3, "slab")
    program = Program(new_steps, atoms)
    program.run()
    open_directions = ~program.tensors.pbc[:, :, None]
    cell = program.tensors.cell.masked_fill(open_directions, torch.nan)
    program.tensors = program.tensors._replace(cell=cell)
    assert_equal(program.run_without_waiting(), program.compute(atoms))


@pytest.mark.parametrize("cells", [3, 40, 127, 1000, 500_000])
def test_atoms_may_lie_far_outside_their_cell(new_steps, cells):
    atoms = crystal(3, "triclinic")
    program = Program(new_steps, atoms)
    near = program.run()
    program.replace(
        moved(atoms, [cells * atoms.cell.array[0], -cells * atoms.cell.array[1], [0] * 3])
    )
    for far in (program.run_without_waiting(), program.run_without_waiting()):
        for name, tensor in far.tensors.items():
            torch.testing.assert_close(tensor, getattr(near, name), rtol=1e-6, atol=1e-6)


def test_atoms_far_outside_may_come_first(new_steps):
    atoms = crystal(3, "triclinic")
    near = Program(new_steps, atoms).run()
    far = Program(new_steps, moved(atoms, [1000 * atoms.cell.array[2], [0] * 3, [0] * 3])).run()
    torch.testing.assert_close(far.forces, near.forces, rtol=1e-6, atol=1e-6)


def test_new_atoms_are_seen(new_steps):
    """Their tensors are other ones, or have been written to."""
    one, other = crystal(3, "triclinic"), crystal(3, "triclinic")
    other.numbers = np.roll(np.where(other.numbers == 1, 6, 1), 1)
    program = Program(new_steps, one)
    program.run()
    program.batch = batch_of(other)
    program.tensors = program.new_tensors()
    assert_equal(program.run(), program.compute(other))
    program.tensors.numbers.copy_(program.tensor(one.numbers))
    assert_equal(program.run(), program.compute(one))
    program.tensors.pbc.zero_()
    one.pbc = False
    assert_equal(program.run(), program.compute(one))


def test_copies_of_the_same_atoms_keep_the_matrix(new_steps):
    atoms = crystal(3, "triclinic")
    program = Program(new_steps, atoms)
    expected, built = program.run(), program.built_positions
    program.batch = batch_of(moved(atoms, 0.01))
    program.tensors = program.new_tensors()
    program.run()
    assert torch.equal(program.built_positions, built)
    program.replace(atoms)
    assert_equal(program.run_without_waiting(), expected)


def test_inference_tensors_are_compared(new_steps):
    one = crystal(3, "triclinic")
    program = Program(new_steps, one)
    with torch.inference_mode():
        program.tensors = program.new_tensors()
    program.run()
    with torch.inference_mode():
        program.tensors.numbers.fill_(6)
    one.numbers[:] = 6
    assert_equal(program.run(), program.compute(one))


def test_charges_matter(new_steps):
    systems = systems_of("ct")
    program = Program(new_steps, *systems, charge=[1, -2])
    assert_equal(program.run(), program.compute(*systems))
    program.tensors.charge.zero_()
    program.batch = batch_of(*systems)
    assert_equal(program.run(), program.compute(*systems))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e12])
def test_lost_atoms_spoil_their_own_system_only(new_steps, value):
    systems = systems_of("tct")
    program = Program(new_steps, *systems)
    expected = program.run()
    program.tensors.positions[4, 1] = value
    lost = program.run_without_waiting()
    assert_nan(lost, slice(1, 2), slice(3, 7))
    for name, tensor in lost.tensors.items():
        kept = [0, 2] if len(tensor) == 3 else [0, 1, 2, 7, 8, 9]
        assert torch.equal(tensor[kept], getattr(expected, name)[kept])
    program.replace(*systems)
    assert_equal(program.run_without_waiting(), expected)


@pytest.mark.parametrize(
    "cell", [0.0, np.nan, np.inf, 1e-7], ids=["singular", "NaN", "inf", "tiny"]
)
def test_unusable_cells_spoil_their_own_system_only(new_steps, cell):
    systems = systems_of("tt")
    program = Program(new_steps, *systems)
    expected = program.run()
    program.tensors.cell[1] *= cell
    lost = program.run_without_waiting()
    assert_nan(lost, slice(1, 2), slice(3, 6))
    assert torch.equal(lost.forces[:3], expected.forces[:3])
    program.replace(*systems)
    assert_equal(program.run_without_waiting(), expected)


def test_coinciding_atoms_spoil_their_own_system_only(new_steps):
    systems = systems_of("tc")
    program = Program(new_steps, *systems)
    expected = program.run()
    program.tensors.positions[4] = program.tensors.positions[3]
    lost = program.run_without_waiting()
    assert_nan(lost, slice(1, 2), slice(3, 7))
    assert torch.equal(lost.forces[:3], expected.forces[:3])


def test_too_few_slots_give_nan_and_an_error_later(new_steps):
    """Twenty atoms, far apart at first, come so close that all of them are neighbors."""
    atoms = Atoms(["C"] * 20, 4 * CUTOFF * np.arange(20)[:, None] * [1.0, 0, 0])
    near = Atoms(["C"] * 20, 0.3 * CUTOFF * np.argwhere(np.ones((3, 3, 3)))[:20])
    program = Program(new_steps, atoms, capacity=Capacity(2, 2))
    program.run()
    program.replace(near)
    assert_nan(program.run_without_waiting(), slice(None), slice(None))
    with pytest.raises(SimulationError, match="19 neighbors, more than its 2"):
        program.run()
    assert_true(program.run(), batch_of(near))


def test_slots_are_added_before_they_are_too_few(new_steps):
    """Each step needs one slot more; none of them is lost."""
    sparse = Atoms(["C"] * 18, 2 * CUTOFF * np.arange(18)[:, None] * [1.0, 0, 0])
    sparse.positions[:9] *= 0.05
    program = Program(new_steps, sparse, capacity=Capacity(2, 2))
    program.run()
    for k in range(9, 18):
        sparse.positions[k, 0] = 0.1 * CUTOFF * k
        program.replace(sparse)
        assert_true(program.run(), batch_of(sparse))


def test_new_atoms_that_cannot_be_are_refused(new_steps):
    atoms = crystal(3, "triclinic")
    program = Program(new_steps, atoms)
    good = program.tensors
    expected = program.run()

    def changed(**fields: Tensor) -> TensorBatch:
        return good._replace(numbers=good.numbers.clone())._replace(**fields)

    positions, cell = good.positions, good.cell
    for error, words, bad in (
        (UnknownElementError, "does not know Au", changed(numbers=good.numbers * 0 + 79)),
        (InputError, "not finite|NaN", changed(positions=positions * torch.nan)),
        (InputError, "no independent cell vector", changed(cell=cell * 0)),
        (InputError, "charge must be an integer", changed(charge=good.charge + 0.5)),
        (InputError, "without gaps", changed(system=good.system + 1)),
    ):
        with pytest.raises(error, match=words):
            program.steps.queue(bad)
    assert_equal(program.run(), expected)


@pytest.mark.parametrize(
    ("factor", "error"), [(0.0, OverlappingAtomsError), (1e9, InputError)], ids=["one point", "far"]
)
def test_first_positions_that_cannot_be_are_refused_again_and_again(new_steps, factor, error):
    program = Program(new_steps, crystal(3, "triclinic"))
    positions = program.tensors.positions.clone()
    program.tensors.positions.mul_(factor)
    for _ in range(2):
        with pytest.raises(error):
            program.run()
    program.tensors.positions.copy_(positions)
    assert program.run().energy.isfinite().all()


def test_sizes_may_alternate(new_steps):
    systems = systems_of("ct")
    steps: DeviceSteps = new_steps()
    programs = [Program(new_steps, atoms) for atoms in systems]
    for _ in range(2):
        for program, atoms in zip(programs, systems, strict=True):
            found = steps.queue(program.tensors).map(Tensor.cpu)
            assert_equal(found, program.compute(atoms))
    assert len(steps._streams) == 2


def test_results_are_kept(new_steps):
    atoms = crystal(3, "triclinic")
    program = Program(new_steps, atoms)
    first = program.steps.queue(program.tensors)
    copies = first.map(torch.clone)
    program.replace(moved(atoms, 0.1 * np.eye(3)))
    program.run()
    for tensor, copy in zip(first.tensors.values(), copies.tensors.values(), strict=True):
        assert torch.equal(tensor, copy)
        assert not tensor.requires_grad


def test_programs_recognize_that_memory_is_lacking(new_steps):
    program = Program(lambda **options: new_steps(wrap=Failing, **options), crystal(3, "triclinic"))
    with pytest.raises(DeviceMemoryError, match="CUDA out of memory: 3 atoms need about"):
        program.run()
    with pytest.raises(RuntimeError):  # as PyTorch's own error
        program.run()
    program.steps._model.operators.failing = False
    assert program.run().energy.isfinite().all()
