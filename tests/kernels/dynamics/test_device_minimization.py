"""Minimization in the blocks of a GPU, whose size and neighbor lists change no bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.dynamics.conditions import minimizing
from mlff_triton.dynamics.pace import Pace
from mlff_triton.dynamics.preparation import minimize
from mlff_triton.engine.motion import Dynamics, Observation
from mlff_triton.errors import InputError
from mlff_triton.kernels.tensornet import operators
from mlff_triton.kernels.tensornet.reference import operators as plain_torch
from tests.support.device_steps import at_start, batch_of, crystal, maker

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


@pytest.fixture(params=["network in PyTorch", "network in kernels"])
def make(request: pytest.FixtureRequest, device: str):
    """Return a function that makes the dynamics of systems."""
    on_gpu = device == "cuda"
    fused = on_gpu or request.param == "network in kernels"
    if on_gpu and request.param != "network in kernels":
        pytest.skip("needs no GPU")
    steps = maker(device, on_gpu, operators if fused else plain_torch)

    def make(*systems: Atoms, **options: object) -> Dynamics:
        masses = np.concatenate([atoms.get_masses() for atoms in systems])
        return steps(**options).dynamics(batch_of(*systems), masses)

    return make


def descend(
    dynamics: Dynamics, systems: list[Atoms], stops: list[int], force: float = 1e-4
) -> Observation:
    """Minimize in blocks that end at these iterations, and return what is seen at the end."""
    positions = np.concatenate([atoms.positions for atoms in systems])
    cell = np.stack([atoms.cell.array for atoms in systems])
    state = at_start(positions, np.zeros_like(positions), cell)
    given = minimizing(len(systems), force)
    dynamics.begin(state, given, is_continued=False)
    dynamics.queue(stops[0], is_observed=True)
    for stop in stops[1:]:
        dynamics.queue(stop, is_observed=True)
        dynamics.collect()
    seen = dynamics.collect()
    assert seen is not None
    return seen


def assert_equal(found: Observation, expected: Observation) -> None:
    np.testing.assert_array_equal(found.state.positions, expected.state.positions)
    for name in ("forces", "energy", "progress"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


@pytest.mark.parametrize("make", ["network in PyTorch"], indirect=True)
def test_blocks_and_skins_change_no_bit(make):
    systems = [crystal(3, "triclinic")]
    expected = descend(make(*systems), systems, [6])
    assert expected.progress[0, 0] == 6
    moved = expected.state.positions - systems[0].positions
    assert np.linalg.norm(moved, axis=1).max() > 4e-4  # beyond what the thinnest skin allows
    for stops, skin in (([1, 2, 5, 6], 4e-4), ([3, 6], 1.0)):
        assert_equal(descend(make(*systems, skin=skin), systems, stops), expected)


@pytest.mark.parametrize("make", ["network in kernels"], indirect=True)
def test_replicas_are_minimized_as_if_alone(make):
    systems = [crystal(2, "triclinic"), crystal(2, "cubic")]
    together = descend(make(*systems, dtype=torch.float32), systems, [2])
    alone = descend(make(systems[1], dtype=torch.float32), systems[1:], [1, 2])
    np.testing.assert_array_equal(together.state.positions[2:], alone.state.positions)
    np.testing.assert_array_equal(together.forces[2:], alone.forces)
    np.testing.assert_array_equal(together.progress[1:], alone.progress)


@pytest.mark.gpu
def test_systems_converge_whatever_the_blocks(make):
    systems = [crystal(3, "triclinic"), crystal(4, "cubic")]
    expected = descend(make(*systems), systems, [300], force=1e-3)
    assert (expected.progress[:, 1] < 1e-3).all()
    assert (expected.progress[:, 0] > 0).all()
    for stops in (range(7, 301, 7), (250, 350)):
        found = descend(make(*systems, skin=1e-3), systems, [*stops], force=1e-3)
        assert_equal(found, expected)


@pytest.mark.parametrize("make", ["network in PyTorch"], indirect=True)
def test_an_atom_that_is_lost_is_named(make):
    atoms = crystal(3, "triclinic")
    dynamics = make(atoms)
    descend(dynamics, [atoms], [1])
    dynamics._motion.positions[1, 2] = torch.nan
    dynamics.queue(2, is_observed=True)
    with pytest.raises(InputError, match="atom 1 is NaN or infinite"):
        dynamics.collect()
    assert dynamics.step == 1
    assert dynamics.suspect().atom == 1


@pytest.mark.parametrize("make", ["network in PyTorch"], indirect=True)
def test_blocks_that_are_queued_at_the_end_are_waited_for(make):
    """The forces of this model are so small that it has converged at the start."""
    atoms = crystal(2, "cubic")
    before, dynamics = atoms.positions.copy(), make(atoms)
    seen = list(minimize(atoms, dynamics, Pace(2)))
    assert [(progress.iterations, progress.converged) for progress in seen] == [(0, True)]
    assert dynamics.step == 4
    np.testing.assert_array_equal(atoms.positions, before)
