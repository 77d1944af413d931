"""The integrator against the reference, and what it leaves alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.integrator import advance
from mlff_triton.kernels.dynamics.reference import integrator as reference
from mlff_triton.kernels.types.motion import Integration, Motion
from mlff_triton.kernels.types.status import AGE, NOT_FINITE, OVERLAP, SHORT, STALE
from mlff_triton.testing import assert_close

COUNTS = (3, 300, 1)
LANGEVIN = Integration(timestep=0.05, seed=2**40 + 3, friction=0.4)
VERLET = Integration(timestep=0.05)


def motion_of(counts: tuple[int, ...] = COUNTS) -> Motion:
    """Return a random state, on the CPU, in which a step can be finished."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    n_atoms, n_systems = sum(counts), len(counts)
    cell = 9 * torch.eye(3).double() + 0.3 * random(n_systems, 3, 3)
    motion = Motion.zeros(5 * random(n_atoms, 3), cell, torch.tensor(counts))
    for name in ("velocities", "done_positions", "done_velocities"):
        getattr(motion, name).copy_(random(n_atoms, 3))
    motion.inverse_mass.copy_(random(n_atoms).exp())
    motion.temperature.copy_(random(n_systems, 2).exp() * torch.tensor([0.03, 1e-4]).double())
    motion.stream.add_(5)
    motion.heat.copy_(random(n_atoms))
    motion.done_heat.copy_(random(n_atoms))
    motion.clock.fill_(7)
    motion.started.fill_(7)
    motion.window.copy_(torch.tensor([5, 9]))
    motion.oldest.fill_(30)
    return motion


def given(counts: tuple[int, ...] = COUNTS) -> tuple[Tensor, Tensor]:
    """Return forces and totals of valid steps, the oldest with an age of 40."""
    generator = torch.Generator().manual_seed(1)
    forces = torch.randn(sum(counts), 3, dtype=torch.float64, generator=generator)
    totals = torch.randn(len(counts), 11, dtype=torch.float64, generator=generator)
    totals[:, -1] = torch.tensor([10.0, 40.0, 20.0])[: len(counts)]
    return forces, totals


def on(device: str, motion: Motion) -> Motion:
    """Return a copy of a state."""
    fields = {name: tensor.clone().to(device) for name, tensor in vars(motion).items()}
    return dataclasses.replace(motion, **fields)


def assert_same(found: Motion, expected: Motion) -> None:
    for name, tensor in vars(expected).items():
        other = getattr(found, name).cpu()
        if tensor.is_floating_point():
            torch.testing.assert_close(other, tensor, rtol=1e-13, atol=1e-13, msg=name)
        else:
            assert torch.equal(other, tensor), name


@pytest.mark.parametrize("integration", [VERLET, LANGEVIN], ids=["verlet", "langevin"])
@pytest.mark.parametrize(("finish", "start"), [(True, True), (True, False), (False, True)])
def test_agrees_with_the_reference(integration, finish, start, device):
    expected = motion_of()
    expected.started.sub_(int(not finish))
    expected.scale.copy_(torch.tensor([1.1, 0.9, 1.0]))
    found = on(device, expected)
    forces, totals = given()
    options = {"finish": finish, "start": start}
    advance(found, forces.to(device), totals.to(device), integration, **options)
    reference.advance(expected, forces, totals, integration, **options)
    assert_same(found, expected)
    assert (expected.clock == 7 + finish).all()
    assert int(expected.oldest) == (40 if finish else 30)


@pytest.mark.parametrize("status", [STALE, OVERLAP, SHORT, NOT_FINITE, STALE + AGE])
def test_invalid_steps_change_nothing(status, device):
    """The status of one system is that of all."""
    motion = motion_of()
    forces, totals = given()
    totals[1, -1] = status
    found = on(device, motion)
    for options in ({}, {"start": False}):
        advance(found, forces.to(device), totals.to(device), LANGEVIN, **options)
        reference.advance(motion, forces, totals, LANGEVIN, **options)
        assert_same(found, motion_of())
        assert_same(motion, motion_of())


@pytest.mark.parametrize("window", [(8, 20), (0, 7), (7, 7)])
def test_steps_outside_the_block_change_nothing(window, device):
    motion = motion_of()
    motion.window.copy_(torch.tensor(window))
    forces, totals = given()
    found = on(device, motion)
    advance(found, forces.to(device), totals.to(device), VERLET)
    assert_same(found, motion)


def test_a_step_is_started_once(device):
    motion = motion_of()
    found = on(device, motion)
    forces, totals = given()
    advance(found, forces.to(device), totals.to(device), LANGEVIN, finish=False)
    assert_same(found, motion)


def test_finish_and_start_apart_are_one_step(device):
    together, apart = on(device, motion_of()), on(device, motion_of())
    forces, totals = (tensor.to(device) for tensor in given())
    advance(together, forces, totals, LANGEVIN)
    advance(apart, forces, totals, LANGEVIN, start=False)
    advance(apart, forces, totals, LANGEVIN, finish=False)
    for name, tensor in vars(together).items():
        assert torch.equal(getattr(apart, name), tensor), name


def test_replicas_move_as_if_alone(device):
    """A system of a batch gets the bits that it gets by itself."""
    batch = on(device, motion_of((300, 300)))
    forces, totals = (tensor.to(device) for tensor in given((300, 300)))
    alone = on(device, motion_of((300, 300)))
    second = {name: tensor for name, tensor in vars(alone).items() if tensor.ndim}
    second = {
        name: tensor[300:] if len(tensor) == 600 else tensor[1:] if len(tensor) == 2 else tensor
        for name, tensor in second.items()
        if name not in ("window", "system_ptr")
    }
    second = {name: tensor.clone() for name, tensor in second.items()}
    ends = torch.tensor([0, 300], dtype=torch.int32, device=device)
    alone = dataclasses.replace(alone, system_ptr=ends, **second)
    advance(batch, forces, totals, LANGEVIN)
    advance(alone, forces[300:].clone(), totals[1:].clone(), LANGEVIN)
    for name in ("positions", "velocities", "done_velocities", "heat", "done_heat"):
        assert torch.equal(getattr(batch, name)[300:], getattr(alone, name)), name


def test_verlet_is_reversible(device):
    """Springs: forward, then backward with the velocities turned around."""
    motion = motion_of((4,))
    motion.done_positions.copy_(motion.positions)
    found = on(device, motion)
    start = found.done_positions.clone()
    totals = torch.zeros(1, 11, dtype=torch.float64, device=device)
    for _ in range(2):
        found.clock.zero_()
        found.started.fill_(-1)
        found.window.copy_(torch.tensor([0, 50]))
        advance(found, -found.done_positions, totals, VERLET, finish=False)
        for _ in range(50):
            advance(found, -found.positions, totals, VERLET)
        found.done_velocities.neg_()
    assert_close(found.done_positions.cpu(), start.cpu(), 0)
