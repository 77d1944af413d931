"""Distributions of simulations against exact ones, by the test of Kolmogorov and Smirnov.

Many small systems run side by side, so that samples are independent. Without a GPU, the reference
takes the steps, with which the kernels agree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mlff_triton.kernels.types.motion import Barostat, Integration, Motion, Rescaling

N_SYSTEMS = 1000
KT = 0.025
STIFFNESS = 10.0

if torch.cuda.is_available():
    from mlff_triton.kernels.dynamics.barostat import press
    from mlff_triton.kernels.dynamics.integrator import advance
    from mlff_triton.kernels.dynamics.rescaling import choose_scale
else:
    from mlff_triton.kernels.dynamics.reference.barostat import press
    from mlff_triton.kernels.dynamics.reference.integrator import advance
    from mlff_triton.kernels.dynamics.reference.rescaling import choose_scale


def simulate(
    n_atoms: int,
    n_steps: int,
    integration: Integration,
    forces_at: Callable[[Tensor], Tensor],
    device: str,
    *,
    rescaling: Rescaling | None = None,
    barostat: Barostat | None = None,
    speed: float = 0.0,
    lost: int = 0,
) -> Motion:
    """Simulate systems that start from one point in cells of 10 Å."""
    cell = 10 * torch.eye(3, dtype=torch.float64, device=device).repeat(N_SYSTEMS, 1, 1)
    positions = torch.zeros(N_SYSTEMS * n_atoms, 3, dtype=torch.float64, device=device)
    motion = Motion.zeros(positions, cell, torch.full((N_SYSTEMS,), n_atoms))
    motion.inverse_mass.copy_(1 / torch.linspace(1, 16, len(positions)))
    motion.temperature[:, 0] = KT
    motion.done_velocities[:, 0] = speed
    motion.lost.fill_(lost)
    if lost:
        generator = torch.Generator().manual_seed(6)
        for values in (motion.done_positions, motion.done_velocities):
            noise = torch.randn(values.shape, dtype=values.dtype, generator=generator)
            values.add_(noise.to(device))
        motion.positions.copy_(motion.done_positions)
    totals = torch.zeros(N_SYSTEMS, 11, dtype=torch.float64, device=device)
    advance(motion, forces_at(motion.positions), totals, integration, finish=False)
    for step in range(n_steps):
        motion.window.copy_(torch.tensor([step, step + 1]))
        forces = forces_at(motion.positions)
        advance(motion, forces, totals, integration, start=rescaling is None)
        if rescaling is not None:
            choose_scale(motion, integration, rescaling)
            advance(motion, forces, totals, integration, finish=False)
        if barostat is not None:
            press(motion, totals, integration, barostat)
    return motion


def springs(positions: Tensor) -> Tensor:
    return -STIFFNESS * positions


def kinetic(motion: Motion) -> np.ndarray:
    """Return the kinetic energy of each system."""
    each = 0.5 * motion.done_velocities.square().sum(1) / motion.inverse_mass
    return each.view(N_SYSTEMS, -1).sum(1).cpu().numpy()


def assert_drawn_from(samples: np.ndarray, distribution: object) -> None:
    assert stats.kstest(samples, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("timestep", [0.1, 0.5])
def test_langevin_samples_positions_exactly_at_any_time_step(timestep, device):
    """For springs, BAOAB has no error in positions. The period of the lightest atom is 2."""
    integration = Integration(timestep, seed=1, friction=1.0)
    motion = simulate(1, int(40 / timestep), integration, springs, device)
    samples = motion.done_positions.flatten().cpu().numpy()
    assert_drawn_from(samples, stats.norm(scale=(KT / STIFFNESS) ** 0.5))


def test_langevin_samples_kinetic_energies(device):
    integration = Integration(0.1, seed=2, friction=1.0)
    motion = simulate(3, 200, integration, torch.zeros_like, device)
    assert_drawn_from(kinetic(motion), stats.gamma(4.5, scale=KT))
    received = motion.done_heat.view(N_SYSTEMS, -1).sum(1).cpu().numpy()
    np.testing.assert_allclose(received, kinetic(motion), rtol=1e-10)


@pytest.mark.parametrize("n_atoms", [1, 4, 50])
def test_rescaling_samples_kinetic_energies(n_atoms, device):
    integration, rescaling = Integration(0.1, seed=3), Rescaling(time=1.0)
    motion = simulate(
        n_atoms, 100, integration, torch.zeros_like, device, rescaling=rescaling, speed=0.3
    )
    assert_drawn_from(kinetic(motion), stats.gamma(1.5 * n_atoms, scale=KT))
    first = 0.5 * 0.09 / motion.inverse_mass.view(N_SYSTEMS, -1)
    gained = kinetic(motion) - first.sum(1).cpu().numpy()
    np.testing.assert_allclose(motion.work.cpu().numpy(), gained, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lost", [3, 6])
def test_rescaling_without_overall_motion_samples_kinetic_energies(lost, device):
    """Systems start with overall motion, which must not count as heat."""
    integration, rescaling = Integration(0.1, seed=7), Rescaling(time=0.2)
    motion = simulate(
        4, 100, integration, torch.zeros_like, device, rescaling=rescaling, lost=lost, speed=2.0
    )
    assert_drawn_from(kinetic(motion), stats.gamma(0.5 * (12 - lost), scale=KT))
    momenta = (motion.done_velocities / motion.inverse_mass[:, None]).view(N_SYSTEMS, 4, 3)
    assert momenta.sum(1).abs().max() < 1e-12
    arms = motion.done_positions.view(N_SYSTEMS, 4, 3)
    angular = torch.linalg.cross(arms, momenta).sum(1).abs()
    assert (angular.max() < 1e-4) == (lost == 6)


@pytest.mark.parametrize("isotropic", [True, False])
def test_the_barostat_samples_volumes_of_an_ideal_gas(isotropic, device):
    """The density of volumes is proportional to V^N exp(-PV / kT)."""
    n_atoms, pressure = 8, 9 * KT / 1000
    integration = Integration(0.5, seed=4, friction=1.0)
    barostat = Barostat(
        pressure, compressibility=1 / pressure, time=50.0, every=1, isotropic=isotropic
    )
    motion = simulate(n_atoms, 400, integration, torch.zeros_like, device, barostat=barostat)
    volumes = torch.linalg.det(motion.cell).cpu().numpy()
    assert_drawn_from(volumes, stats.gamma(n_atoms + 1, scale=KT / pressure))
    side = motion.cell[:, 0, 0] - motion.cell[:, 1, 1]
    assert (side.abs().max() < 1e-9) == isotropic


def test_temperatures_follow_their_schedule(device):
    """The thermostat knows the step, so that a ramp needs nobody who changes it."""
    cell = torch.eye(3, dtype=torch.float64, device=device).repeat(N_SYSTEMS, 1, 1)
    positions = torch.zeros(N_SYSTEMS * 3, 3, dtype=torch.float64, device=device)
    motion = Motion.zeros(positions, cell, torch.full((N_SYSTEMS,), 3))
    motion.inverse_mass.fill_(1.0)
    motion.temperature.copy_(torch.tensor([0.0, KT / 100]))
    integration = Integration(1.0, seed=5, friction=50.0)  # forgets velocities at once
    totals = torch.zeros(N_SYSTEMS, 11, dtype=torch.float64, device=device)
    zero = torch.zeros_like(positions)
    motion.window.copy_(torch.tensor([0, 100]))
    advance(motion, zero, totals, integration, finish=False)
    for step in range(100):
        advance(motion, zero, totals, integration)
        if step + 1 in (2, 51, 100):
            mean = kinetic(motion).mean()
            assert mean == pytest.approx(4.5 * KT * step / 100, rel=0.05)
