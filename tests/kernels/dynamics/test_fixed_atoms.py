"""Atoms without inverse mass: they rest, and count neither as mass nor as degrees of freedom."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.descent import descend
from mlff_triton.kernels.dynamics.integrator import advance
from mlff_triton.kernels.dynamics.reference import descent as reference_descent
from mlff_triton.kernels.dynamics.reference import integrator as reference
from mlff_triton.kernels.dynamics.reference import rescaling as reference_rescaling
from mlff_triton.kernels.dynamics.rescaling import choose_scale
from mlff_triton.kernels.types.motion import Descent, Integration, Motion, Rescaling
from tests.kernels.dynamics.test_integrator import (
    COUNTS,
    LANGEVIN,
    VERLET,
    assert_same,
    given,
    motion_of,
    on,
)

RESCALING = Rescaling(time=0.7)


def with_fixed_atoms(counts: tuple[int, ...] = COUNTS) -> tuple[Motion, Tensor]:
    """Return a state in which every third atom rests, and a mask of these atoms."""
    motion = motion_of(counts)
    fixed = torch.arange(sum(counts)) % 3 == 0
    motion.inverse_mass[fixed] = 0
    for name in ("velocities", "done_velocities", "heat", "done_heat"):
        getattr(motion, name)[fixed] = 0
    return motion, fixed


@pytest.mark.parametrize("integration", [VERLET, LANGEVIN], ids=["verlet", "langevin"])
@pytest.mark.parametrize("finish", [True, False])
def test_they_stay_to_the_last_bit(integration, finish, device):
    expected, fixed = with_fixed_atoms()
    expected.started.sub_(int(not finish))
    before = expected.positions if finish else expected.done_positions
    before, others = before[fixed].clone(), expected.positions[~fixed].clone()
    found = on(device, expected)
    forces, totals = given()
    advance(found, forces.to(device), totals.to(device), integration, finish=finish)
    reference.advance(expected, forces, totals, integration, finish=finish)
    assert_same(found, expected)
    for motion in (on("cpu", found), expected):
        assert torch.equal(motion.positions[fixed], before)
        assert not motion.velocities[fixed].any()
        assert not motion.done_velocities[fixed].any()
        assert not motion.heat[fixed].any()
        assert (motion.positions[~fixed] != others).all()


def test_they_are_no_degrees_of_freedom(device):
    """The scale is that of the other atoms alone."""
    counts = (3, 300)
    expected, fixed = with_fixed_atoms(counts)
    expected.started.sub_(1)
    alone = motion_of((2, 200))
    for name in ("inverse_mass", "done_velocities", "done_positions"):
        getattr(alone, name).copy_(getattr(expected, name)[~fixed])
    alone.temperature.copy_(expected.temperature)
    alone.started.sub_(1)
    found, integration = on(device, expected), Integration(timestep=0.05, seed=99)
    choose_scale(found, integration, RESCALING)
    reference_rescaling.choose_scale(expected, integration, RESCALING)
    reference_rescaling.choose_scale(alone, integration, RESCALING)
    assert_same(found, expected)
    assert (expected.scale != 1).all()
    torch.testing.assert_close(expected.scale, alone.scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(expected.work, alone.work, rtol=1e-10, atol=1e-12)


def test_forces_on_them_do_not_count_in_a_minimization(device):
    descent = Descent(max_force=0.05)
    expected, fixed = with_fixed_atoms()
    expected.reset(7, descent)
    expected.window.copy_(torch.tensor([5, 9]))
    forces, totals = given()
    forces[fixed] *= 1e6
    before = expected.positions.clone()
    found = on(device, expected)
    for _ in range(2):
        descend(found, forces.to(device), totals.to(device), descent)
        reference_descent.descend(expected, forces, totals, descent)
    assert_same(found, expected)
    for motion in (on("cpu", found), expected):
        assert torch.equal(motion.positions[fixed], before[fixed])
        moved = (motion.positions != before).any(1)
        assert torch.equal(moved, ~fixed & (torch.arange(len(fixed)) < sum(COUNTS[:2])))
        assert (motion.progress[:2, 1] < 10).all()
        assert motion.progress[2].tolist() == [0, 0]  # its only atom is fixed
