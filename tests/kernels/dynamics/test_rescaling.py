"""Thermostat and barostat against the reference, and the laws that they must obey."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.dynamics.integrator import advance
from mlff_triton.kernels.dynamics.reference import rescaling as reference
from mlff_triton.kernels.dynamics.rescaling import choose_scale, press
from mlff_triton.kernels.types.motion import Barostat, Integration, Rescaling
from tests.kernels.dynamics.test_integrator import assert_same, given, motion_of, on

INTEGRATION = Integration(timestep=0.05, seed=99)
RESCALING = Rescaling(time=0.7)


def barostat(isotropic: bool) -> Barostat:
    return Barostat(pressure=0.01, compressibility=7.0, time=400.0, every=7, isotropic=isotropic)


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


@pytest.mark.parametrize("isotropic", [True, False])
def test_cells_agree_with_the_reference(isotropic, device):
    expected = motion_of()
    _, totals = given()
    found = on(device, expected)
    before = expected.cell.clone()
    press(found, totals.to(device), INTEGRATION, barostat(isotropic))
    reference.press(expected, totals, INTEGRATION, barostat(isotropic))
    assert_same(found, expected)
    assert not torch.equal(expected.cell, before)
    again = on(device, found)
    press(again, totals.to(device), INTEGRATION, barostat(isotropic))
    assert_same(again, on("cpu", found))


@pytest.mark.parametrize(("every", "is_continued"), [(3, True), (7, False)])
def test_cells_change_only_when_that_is_due(every, is_continued, device):
    motion = motion_of()
    motion.reset(7, is_continued=is_continued)
    found = on(device, motion)
    press(found, given()[1].to(device), INTEGRATION, barostat(True)._replace(every=every))
    assert_same(found, motion)


def test_momenta_shrink_as_positions_grow(device):
    """The phase space volume is kept: positions grow by a matrix, momenta shrink by it."""
    motion = motion_of((5,))
    found = on(device, motion)
    press(found, given((5,))[1].to(device), INTEGRATION, barostat(False))
    found = on("cpu", found)
    grown, shrunk = (
        torch.linalg.lstsq(getattr(motion, name), getattr(found, name)).solution
        for name in ("positions", "velocities")
    )
    torch.testing.assert_close(grown @ shrunk, torch.eye(3).double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(motion.cell[0] @ grown, found.cell[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("isotropic", [True, False])
def test_the_work_of_the_barostat_is_settled_one_step_later(isotropic, device):
    """Half of it follows from the virial before, half from the one after; velocities give heat."""
    motion = motion_of()
    motion.owed.fill_(-1)
    _, totals = given()
    found, heat, work = on(device, motion), motion.heat.clone(), motion.work.clone()
    press(found, totals.to(device), INTEGRATION, barostat(isotropic))
    now = on("cpu", found)
    mass = 1 / motion.inverse_mass
    gained = 0.5 * mass * (now.velocities.square() - motion.velocities.square()).sum(1)
    torch.testing.assert_close(now.heat - heat, gained, rtol=1e-9, atol=1e-12)
    assert torch.equal(now.work, work)

    later = totals.clone()
    later[:, 1:10] *= 1.5
    for _ in range(2):  # the second time, nothing is owed
        found.clock.fill_(int(motion.clock[0, 0]) + 1)
        press(found, later.to(device), INTEGRATION, barostat(isotropic))
    now = on("cpu", found)
    strain = torch.linalg.solve(motion.cell, now.cell)
    unit = torch.eye(3, dtype=torch.float64)
    before, after = (t[:, 1:10].unflatten(1, (3, 3)) for t in (totals, later))
    expected = before * (strain - unit) + after * (unit - torch.linalg.inv(strain))
    torch.testing.assert_close(now.work - work, 0.5 * expected.sum((1, 2)), rtol=1e-7, atol=1e-9)
