"""The thermostat that rescales velocities against the reference, and the laws it must obey."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.dynamics.integrator import advance
from mlff_triton.kernels.dynamics.reference import rescaling as reference
from mlff_triton.kernels.dynamics.rescaling import choose_scale
from mlff_triton.kernels.types.motion import Integration, Rescaling
from tests.kernels.dynamics.test_integrator import assert_same, given, motion_of, on

INTEGRATION = Integration(timestep=0.05, seed=99)
RESCALING = Rescaling(time=0.7)


@pytest.mark.parametrize("lost", [0, 3, 6])
def test_scales_agree_with_the_reference(lost, device):
    expected = motion_of((3, 300))
    expected.started.sub_(1)
    expected.lost.fill_(lost)
    found = on(device, expected)
    choose_scale(found, INTEGRATION, RESCALING)
    reference.choose_scale(expected, INTEGRATION, RESCALING)
    assert_same(found, expected)
    assert (expected.scale != 1).all()
    assert (expected.drift != 0).any(0).tolist() == [lost > 0] * 3 + [lost == 6] * 3


@pytest.mark.parametrize("shape", ["bulky", "straight"])
@pytest.mark.parametrize("lost", [3, 6])
def test_overall_motion_is_removed(lost, shape, device):
    """The work is the change of the kinetic energy, and the rest of the motion is only scaled."""
    counts = (3, 300)
    motion = motion_of(counts)
    if shape == "straight":
        motion.done_positions[:, :2] = 7.0
    motion.started.sub_(1)
    motion.lost.fill_(lost)
    motion.work.zero_()
    found = on(device, motion)
    choose_scale(found, INTEGRATION, RESCALING)
    forces, totals = given(counts)
    options = {"finish": False}
    advance(found, forces.to(device), totals.to(device), INTEGRATION, **options)
    found = on("cpu", found)
    begin = 0
    for k, count in enumerate(counts):
        part = slice(begin, begin + count)
        mass = 1 / motion.inverse_mass[part, None]
        old, new = motion.done_velocities[part], found.done_velocities[part]
        size = (mass * new).abs().sum()
        assert (mass * new).sum(0).norm() < 1e-13 * size
        angular = (mass * torch.linalg.cross(motion.done_positions[part], new)).sum(0).norm()
        assert (angular < 1e-7 * 10 * size) == (lost == 6)
        gained = 0.5 * (mass * (new.square() - old.square())).sum()
        torch.testing.assert_close(found.work[k], gained, rtol=1e-12, atol=1e-12)
        begin += count


def test_a_scale_is_chosen_once(device):
    motion = motion_of()
    found = on(device, motion)
    choose_scale(found, INTEGRATION, RESCALING)
    reference.choose_scale(motion, INTEGRATION, RESCALING)
    assert_same(found, motion_of())
    assert_same(motion, motion_of())


def test_systems_at_rest_stay_so(device):
    motion = motion_of()
    motion.started.sub_(1)
    motion.done_velocities.zero_()
    found = on(device, motion)
    choose_scale(found, INTEGRATION, RESCALING)
    assert found.scale.tolist() == [1.0] * 3
    assert torch.equal(found.work.cpu(), motion.work)
