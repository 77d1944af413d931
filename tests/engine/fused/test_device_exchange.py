"""Parts on a GPU that exchange tensors of atoms at their borders.

As in `test_device_part`, most tests compute the network in plain PyTorch if there is no GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import OwnImages, PartPrediction
from mlff_triton.testing import assert_close, random_crystal
from tests.support.device_parts import NAMES, compute_together, set_atoms, step
from tests.support.device_steps import CUTOFF, SKIN, batch_of, crystal, model, moved, truth
from tests.support.exchanges import Echo
from tests.support.parts import Part, assert_whole, divide, slabs, sum_of_parts

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]


def assert_sum(found: list[PartPrediction], atoms: Atoms, parts: list[Part], *dtype) -> None:
    results = iter(found)
    sums = sum_of_parts(lambda *_: next(results), atoms, parts)
    assert_whole(sums, truth().evaluate(batch_of(atoms)), *dtype)


def assert_same(found: PartPrediction, expected: PartPrediction) -> None:
    for name in NAMES:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def alone(atoms: Atoms, reach: float = CUTOFF) -> Part:
    (part,) = divide(atoms, slabs(atoms, 1), reach, 1)
    return part


def images(part: Part) -> OwnImages:
    """Return the exchange of a part whose own atoms are those of its system, in order."""
    return OwnImages(part.index[part.n_own :].astype(np.int32), part.n_own)


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "slab"])
@pytest.mark.parametrize("unused", [0, 2])
def test_parts_add_up(new_steps, kind, unused):
    steps, atoms = [new_steps() for _ in range(2)], random_crystal(8, kind)
    assert steps[0].exchange_reach == CUTOFF
    parts = divide(atoms, slabs(atoms, 2), CUTOFF, 2)
    assert_sum(compute_together(steps, atoms, parts, unused), atoms, parts)


def test_scattered_atoms(new_steps):
    atoms = random_crystal(9, "cubic")
    parts = divide(atoms, np.arange(9) % 3, CUTOFF, 3)
    assert_sum(compute_together([new_steps() for _ in range(3)], atoms, parts), atoms, parts)


def test_fused_kernels(fused, dtype):
    atoms = crystal(3, "triclinic")
    parts = divide(atoms, slabs(atoms, 2), CUTOFF, 2)
    found = compute_together([fused(dtype) for _ in range(2)], atoms, parts)
    assert_sum(found, atoms, parts, dtype)


def test_two_layers_in_graphs(device):
    """Two exchanges forward, and two backward."""
    backend = "triton-graph" if device == "cuda" else "triton"
    atoms, engine = crystal(3, "cubic"), Engine(model(2), device, "float64", backend)
    part, system = alone(atoms), engine.part()
    assert system.exchange_reach == CUTOFF
    system.set_atoms(atoms.numbers[part.index], part.n_own, len(atoms), Echo(part, 40))
    found = [system.step(part.positions(atoms), per_atom=True) for _ in range(3)][-1]
    sums = sum_of_parts(lambda *_: found, atoms, [part])
    exact = Engine(model(2), "cpu", "float64", "exact")
    assert_whole(sums, exact.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc))


def test_images_of_own_atoms_are_these_atoms(new_steps):
    steps, atoms = new_steps(torch.float32), crystal(4, "cubic")
    part, device_part = alone(atoms), steps.part(0.0)
    set_atoms(device_part, atoms, part, images(part))
    expected = step(device_part, atoms, part)
    assert_sum([expected], atoms, [part], torch.float32)
    for n_echoes, unused in ((len(part.index) - part.n_own, 0), (20, 5), (7, 0)):
        set_atoms(device_part, atoms, part, Echo(part, n_echoes, unused))
        assert_same(step(device_part, atoms, part), expected)


def test_forces_are_summed_where_work_is_queued(new_steps):
    steps, atoms = new_steps(), crystal(4, "cubic")
    part, device_part = alone(atoms), steps.part(0.0)
    for exchange in (images(part), Echo(part, 30), Echo(part, 30, 3)):
        set_atoms(device_part, atoms, part, exchange)
        positions = part.positions(atoms)
        found = device_part.step(positions, per_atom=False).forces
        assert found.shape == (4, 3)
        every = device_part.step(positions, per_atom=True).forces
        assert len(every) == len(positions)
        expected = np.zeros((4, 3))
        np.add.at(expected, part.index, every)
        assert_close(found, expected, 1)
        again = device_part.step(positions, per_atom=False).forces.copy()
        np.testing.assert_array_equal(device_part.step(positions, per_atom=False).forces, again)


def test_matrices_are_renewed_before_others_wait(new_steps):
    """Nothing is sent twice in a step, whenever a part has to renew its matrix."""
    steps, atoms = new_steps(), crystal(4, "cubic")
    part, device_part, counts = alone(atoms, CUTOFF + 1.0), steps.part(0.0), []
    exchange = Echo(part, 30)
    trade = exchange.trade
    exchange.trade = lambda *tensors: (counts.append(1), trade(*tensors))
    exchange.is_queued = False  # so that each step calls it
    set_atoms(device_part, atoms, part, exchange)
    for shift in (0.0, 0.05, SKIN, -SKIN):
        positions = moved(atoms, shift * np.eye(4)[:, :3])
        counts.clear()
        assert_sum([step(device_part, positions, part)], positions, [part])
        assert len(counts) == 2 * model().config.num_layers
    assert steps.n_builds == 3


def test_graphs_last_while_messages_keep_their_sizes(new_steps):
    steps, atoms = new_steps(), crystal(4, "cubic")
    part, device_part = alone(atoms), steps.part(0.0)
    layouts = []
    for n_echoes, unused in ((2, 3), (2, 3), (30, 3)):
        set_atoms(device_part, atoms, part, Echo(part, n_echoes, unused))
        assert_sum([step(device_part, atoms, part)], atoms, [part])
        layouts.append(device_part._buffers._state.neighbors.layout)
    assert layouts[0] == layouts[1] < layouts[2]


def test_parts_with_and_without_an_exchange_in_turn(new_steps):
    steps, atoms = new_steps(), crystal(3, "cubic")
    device_part = steps.part(0.0)
    near, far = alone(atoms), alone(atoms, steps.reach)
    for _ in range(2):
        set_atoms(device_part, atoms, near, images(near))
        assert_sum([step(device_part, atoms, near)], atoms, [near])
        set_atoms(device_part, atoms, far, None)
        assert_sum([step(device_part, atoms, far)], atoms, [far])
