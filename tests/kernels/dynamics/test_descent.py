"""Minimization against the reference, and the minima that it finds."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.descent import descend
from mlff_triton.kernels.dynamics.reference import descent as reference
from mlff_triton.kernels.types.motion import Descent, Motion
from mlff_triton.kernels.types.status import STALE
from tests.kernels.dynamics.test_integrator import COUNTS, assert_same, given, motion_of, on

DESCENT = Descent(max_force=0.05)


def descending(counts: tuple[int, ...] = COUNTS) -> Motion:
    """Return a state with a system that moves downhill, one that moves uphill, and one at rest."""
    motion = motion_of(counts)
    motion.reset(7, DESCENT)
    motion.window.copy_(torch.tensor([5, 9]))
    forces, _ = given(counts)
    begin = 0
    for k, count in enumerate(counts):
        motion.velocities[begin : begin + count] = (0.3, -0.3, 0.0)[k] * forces[begin:][:count]
        begin += count
    motion.descent[:, 2] = torch.tensor([5.0, 7.0, 0.0])[: len(counts)]
    return motion


def springs(positions: Tensor, stiffness: Tensor) -> Tensor:
    return -stiffness[:, None] * positions


def test_agrees_with_the_reference(device):
    expected, (forces, totals) = descending(), given()
    found = on(device, expected)
    before = expected.positions.clone()
    descend(found, forces.to(device), totals.to(device), DESCENT)
    reference.descend(expected, forces, totals, DESCENT)
    assert_same(found, expected)
    assert (expected.clock == 8).all()
    assert torch.equal(expected.done_positions, before)
    timestep, mixing, count, back, keep, push = expected.descent.T
    assert timestep.tolist() == pytest.approx([0.11, 0.05, 0.1])
    assert mixing.tolist() == pytest.approx([0.1 * 0.99, 0.1, 0.1])
    assert count.tolist() == [6, 0, 0]
    assert (back < 0).tolist() == [False, True, True]
    assert (keep > 0).tolist() == [True, False, False]
    assert (push > 0).all()


def test_atoms_move_no_further_than_the_limit(device):
    motion, (forces, totals) = descending(), given()
    found = on(device, motion)
    descend(found, (1e6 * forces).to(device), totals.to(device), DESCENT)
    moved = (found.positions - found.done_positions).norm(dim=1)
    torch.testing.assert_close(moved, torch.full_like(moved, 0.2), rtol=1e-10, atol=0)


@pytest.mark.parametrize("reason", ["stale", "block"])
def test_steps_that_do_not_count_change_nothing(reason, device):
    motion, (forces, totals) = descending(), given()
    if reason == "stale":
        totals[1, -1] = STALE
    else:
        motion.window.copy_(torch.tensor([8, 20]))
    found, expected = on(device, motion), on("cpu", motion)
    descend(found, forces.to(device), totals.to(device), DESCENT)
    reference.descend(expected, forces, totals, DESCENT)
    assert_same(found, motion)
    assert_same(expected, motion)


def test_systems_rest_once_they_have_converged(device):
    """Springs of different stiffness: each system takes its own number of iterations."""
    counts = (2, 5, 1)
    motion, (_, totals) = descending(counts), given(counts)
    motion.velocities.zero_()
    motion.descent[:, 2] = 0
    motion.window.copy_(torch.tensor([0, 1000]))
    stiffness = torch.linspace(1.0, 30.0, 3).double().repeat_interleave(torch.tensor(counts))
    found, totals, stiffness = on(device, motion), totals.to(device), stiffness.to(device)
    seen = {}
    for step in range(150):
        descend(found, springs(found.positions, stiffness), totals, DESCENT)
        for k, force in enumerate(found.progress[:, 1].tolist()):
            if force < DESCENT.max_force:
                seen.setdefault(k, (step, found.positions.clone()))
        if len(seen) == 3 and step > 5 + max(step for step, _ in seen.values()):
            break
    assert sorted(seen) == [0, 1, 2]
    assert len({step for step, _ in seen.values()}) == 3
    begin = 0
    for k, count in enumerate(counts):
        step, positions = seen[k]
        part = slice(begin, begin + count)
        assert torch.equal(found.positions[part], positions[part])
        assert torch.equal(found.done_positions[part], positions[part])
        assert found.progress[k, 0] == step
        begin += count
    largest = springs(found.positions, stiffness).norm(dim=1).max()
    assert found.progress[:, 1].max().item() == pytest.approx(largest.item())


def test_a_force_that_is_not_finite_does_not_converge(device):
    motion, (forces, totals) = descending(), given()
    forces *= 1e-3
    forces[5, 1] = torch.nan
    found = on(device, motion)
    descend(found, forces.to(device), totals.to(device), DESCENT)
    reference.descend(motion, forces, totals, DESCENT)
    for state in (found, motion):
        assert state.progress[:, 0].tolist() == [0, 1, 0]
        lost = state.positions.isnan().all(1)
        assert lost[3:303].all()
        assert not lost[:3].any()


def test_replicas_are_minimized_as_if_alone(device):
    batch, (forces, totals) = descending((300, 300)), given((300, 300))
    batch.velocities[300:].copy_(0.3 * forces[300:])
    alone = descending((300,))
    alone = dataclasses.replace(
        alone,
        positions=batch.positions[300:].clone(),
        velocities=batch.velocities[300:].clone(),
    )
    alone.descent.copy_(batch.descent[1:])
    batch, alone = on(device, batch), on(device, alone)
    for _ in range(2):
        descend(batch, forces.to(device), totals.to(device), DESCENT)
        descend(alone, forces[300:].to(device), totals[1:].to(device), DESCENT)
    assert torch.equal(batch.positions[300:], alone.positions)
    assert torch.equal(batch.velocities[300:], alone.velocities)
    assert torch.equal(batch.descent[1:], alone.descent)
    assert torch.equal(batch.progress[1:], alone.progress)
