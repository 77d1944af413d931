"""Integrator, thermostats and minimization in loops for CPUs against the references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.reference import descent as reference_descent
from mlff_triton.kernels.dynamics.reference import integrator as reference
from mlff_triton.kernels.dynamics.reference import rescaling as reference_rescaling
from mlff_triton.kernels.types.motion import Descent, Integration, Motion, Rescaling
from mlff_triton.kernels.types.status import NOT_FINITE, STALE
from tests.kernels.dynamics.test_descent import DESCENT, descending
from tests.kernels.dynamics.test_integrator import (
    COUNTS,
    LANGEVIN,
    VERLET,
    assert_same,
    given,
    motion_of,
    on,
)

pytest.importorskip("numba")
from mlff_triton.kernels.dynamics.cpu.descent import descend
from mlff_triton.kernels.dynamics.cpu.integrator import advance
from mlff_triton.kernels.dynamics.cpu.rescaling import choose_scale

RESCALING = Rescaling(time=0.7)


def fixed(motion, rng) -> None:
    """Fix some atoms."""
    atoms = torch.from_numpy(rng.random(len(motion.inverse_mass)) < 0.3)
    atoms[torch.tensor([0, COUNTS[0], -1])] = False
    motion.inverse_mass[atoms] = 0.0
    motion.velocities[atoms] = motion.done_velocities[atoms] = 0.0


@pytest.mark.parametrize("clock", [7, 2**31 + 3, 2**40 + 1])
@pytest.mark.parametrize("integration", [VERLET, LANGEVIN], ids=["verlet", "langevin"])
@pytest.mark.parametrize(("finish", "start"), [(True, True), (True, False), (False, True)])
def test_steps_agree_with_the_reference(integration, finish, start, clock, rng):
    expected = motion_of()
    fixed(expected, rng)
    expected.clock.fill_(clock)
    expected.started.fill_(clock - int(not finish))
    expected.window.copy_(torch.tensor([clock - 2, clock + 2]))
    expected.temperature[:, 1] *= 1e-9
    expected.scale.copy_(torch.from_numpy(rng.uniform(0.5, 2.0, 3)))
    expected.drift.copy_(torch.from_numpy(rng.normal(size=(3, 6))))
    found = on("cpu", expected)
    for motion, function in ((found, advance), (expected, reference.advance)):
        function(motion, *given(), integration, finish=finish, start=start)
    assert_same(found, expected)
    assert (expected.clock == clock + finish).all()


@pytest.mark.parametrize("status", [STALE, NOT_FINITE])
def test_invalid_steps_change_nothing(status):
    forces, totals = given()
    totals[1, -1] = status
    found = motion_of()
    advance(found, forces, totals, LANGEVIN)
    advance(found, forces, totals, LANGEVIN, start=False)
    advance(found, forces, totals, LANGEVIN, finish=False)
    descend(found, forces, totals, DESCENT)
    assert_same(found, motion_of())


@pytest.mark.parametrize("counts", [COUNTS, (3, 1, 5), (40,)])
@pytest.mark.parametrize("lost", [0, 3, 6])
def test_scales_agree_with_the_reference(lost, counts, rng):
    expected = motion_of(counts)
    if counts == COUNTS:
        fixed(expected, rng)
    expected.started.sub_(1)
    expected.lost.fill_(lost)
    if lost:
        expected.lost[torch.tensor(counts) == 1] = 0
    found = on("cpu", expected)
    choose_scale(found, Integration(0.05, seed=99), RESCALING)
    reference_rescaling.choose_scale(expected, Integration(0.05, seed=99), RESCALING)
    for name, tensor in vars(expected).items():
        other = getattr(found, name)
        assert torch.allclose(other.double(), tensor.double(), rtol=1e-10, atol=1e-10), name
    assert (expected.scale != 1).any()


def test_a_linear_molecule_stops_turning():
    motion = motion_of((2,))
    motion.started.sub_(1)
    motion.lost.fill_(6)
    motion.work.zero_()
    before = kinetic_energy(motion)
    choose_scale(motion, VERLET, RESCALING)
    advance(motion, *given((2,)), VERLET, finish=False)
    velocity, arm = (t.diff(dim=0)[0] for t in (motion.done_velocities, motion.done_positions))
    momentum = (motion.done_velocities / motion.inverse_mass[:, None]).sum(0)
    assert momentum.norm() < 1e-12
    assert torch.linalg.cross(arm, velocity).norm() < 1e-6
    assert velocity.norm() > 0.1
    torch.testing.assert_close(motion.work[0], kinetic_energy(motion) - before)


def kinetic_energy(motion: Motion) -> Tensor:
    return 0.5 * (motion.done_velocities.square().sum(1) / motion.inverse_mass).sum()


def test_a_scale_is_chosen_once():
    found = motion_of()
    choose_scale(found, LANGEVIN, RESCALING)
    assert_same(found, motion_of())


@pytest.mark.parametrize("descent", [DESCENT, Descent(max_force=1.5, delay=2, max_move=1e-3)])
def test_minimization_agrees_with_the_reference(descent, rng):
    expected = descending()
    fixed(expected, rng)
    found = on("cpu", expected)
    forces, totals = given()
    for _ in range(4):
        forces = forces * torch.from_numpy(rng.uniform(0.2, 1.1, forces.shape))
        for motion, function in ((found, descend), (expected, reference_descent.descend)):
            motion.window.copy_(torch.tensor([0, 99]))
            function(motion, forces, totals, descent)
        assert_same(found, expected)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_take_the_same_steps(threads):
    alone, shared = (motion_of((5, 300, 1, 94)) for _ in range(2))
    rng = np.random.default_rng(0)
    forces, totals = torch.from_numpy(rng.normal(size=(400, 3))), torch.zeros(4, 11).double()
    advance(alone, forces, totals, LANGEVIN)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        advance(shared, forces, totals, LANGEVIN)
    finally:
        torch.set_num_threads(before)
    for name, tensor in vars(alone).items():
        assert torch.equal(getattr(shared, name), tensor), name
