"""The barostat against the reference, and the laws that it must obey."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from mlff_triton.engine.motion import check_strain
from mlff_triton.errors import SimulationError
from mlff_triton.kernels.dynamics import barostat as kernels
from mlff_triton.kernels.dynamics.barostat import press
from mlff_triton.kernels.dynamics.integrator import advance
from mlff_triton.kernels.dynamics.reference import barostat as reference
from mlff_triton.kernels.dynamics.reference import integrator as integrators
from mlff_triton.kernels.types.motion import SHARE, Barostat, Integration, Motion
from tests.kernels.dynamics.test_integrator import assert_same, given, motion_of, on

INTEGRATION = Integration(timestep=0.05, seed=99)
EVERY = 7


def barostat(isotropic: bool) -> Barostat:
    return Barostat(0.01, compressibility=7.0, time=400.0, every=EVERY, isotropic=isotropic)


@pytest.mark.parametrize("stiffness", [0.0, 300.0])
@pytest.mark.parametrize("isotropic", [True, False])
def test_cells_agree_with_the_reference(isotropic, stiffness, device):
    expected = motion_of()
    expected.stiffness.copy_(torch.tensor([stiffness, 0.0, 2 * stiffness]))
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
    for motion, act in ((found, press), (expected, reference.press)):
        motion.clock.add_(1)
        act(motion, (2 * totals).to(motion.cell.device), INTEGRATION, barostat(isotropic))
    assert_same(found, expected)
    assert (expected.owed[:, 1] == -1).all()


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
    torch.testing.assert_close(grown @ shrunk.mT, torch.eye(3).double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(motion.cell[0] @ grown, found.cell[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("isotropic", [True, False])
def test_the_work_of_the_barostat_is_settled_one_step_later(isotropic, device):
    """Half of it follows from the virial before, half from the one after; velocities give heat."""
    motion = motion_of()
    motion.owed.fill_(-1)
    totals = given()[1]
    totals[:, 1:10] += totals[:, [1, 4, 7, 2, 5, 8, 3, 6, 9]]
    found, heat, work = on(device, motion), motion.heat.clone(), motion.work.clone()
    press(found, totals.to(device), INTEGRATION, barostat(isotropic))
    now = on("cpu", found)
    mass = 1 / motion.inverse_mass
    gained = 0.5 * mass * (now.velocities.square() - motion.velocities.square()).sum(1)
    torch.testing.assert_close(now.heat - heat, gained, rtol=1e-9, atol=1e-12)
    assert torch.equal(now.work, work)

    grown = now.strain[:, 0]
    turn = torch.linalg.solve(_root(grown @ grown.mT), grown)
    before = totals[:, 1:10].unflatten(1, (3, 3))
    later = totals.clone()
    later[:, 1:10] = (1.5 * turn.mT @ before @ turn).flatten(1)
    for _ in range(2):  # the second time, nothing is owed
        found.clock.fill_(int(motion.clock[0, 0]) + 1)
        press(found, later.to(device), INTEGRATION, barostat(isotropic))
    now = on("cpu", found)
    strain = _root(grown @ grown.mT) - torch.eye(3, dtype=torch.float64)
    expected = 1.25 * (before * strain).sum((1, 2))
    torch.testing.assert_close(now.work - work, expected, rtol=0.02, atol=0)


def _root(squares: torch.Tensor) -> torch.Tensor:
    """Return the roots of symmetric matrices."""
    values, vectors = torch.linalg.eigh(squares)
    return vectors @ torch.diag_embed(values.sqrt()) @ vectors.mT


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
def test_cells_keep_their_orientation(module, device):
    """Only a symmetric strain matters; lattice vectors that are lower triangular remain so."""
    device = device if module is kernels else "cpu"
    motion = motion_of((4, 4, 4))
    motion.done_cell[0].tril_()
    motion.done_cell[1] = motion.done_cell[0] * torch.tensor([1.0, 1.0, -1.0])  # left-handed
    motion.cell.copy_(motion.done_cell)
    found = on(device, motion)
    module.press(found, given((4, 4, 4))[1].to(device), INTEGRATION, barostat(False))
    found = on("cpu", found)
    grown, shrunk = found.strain.unbind(1)
    torch.testing.assert_close(grown @ shrunk.mT, torch.eye(3).double().expand(3, 3, 3))
    assert (found.cell[:2].triu(1) == 0).all()
    assert (found.cell[:2].tril(-1) != motion.cell[:2].tril(-1)).sum() == 6
    assert (torch.linalg.det(found.cell) * torch.linalg.det(motion.cell) > 0).all()
    for old, new in zip(motion.cell, found.cell, strict=True):
        assert torch.linalg.cross(old[0], new[0]).norm() < 1e-12 * old[0].dot(new[0])
        assert torch.linalg.cross(old[0], old[1]).dot(new[1]).abs() < 1e-11


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
@pytest.mark.parametrize("size", [1e6, np.nan])
def test_jumps_end_a_simulation(module, size, device):
    device = device if module is kernels else "cpu"
    motion = on(device, motion_of())
    totals = given()[1].to(device)
    module.press(motion, totals, INTEGRATION, barostat(True))
    check_strain(motion)
    motion.reset(2 * EVERY, is_continued=True)
    totals[1, 1] = size
    module.press(motion, totals, INTEGRATION, barostat(True))
    with pytest.raises(SimulationError, match="the volume jumped after step 14"):
        check_strain(motion)
    assert motion.cell.isfinite().all()
    lost = motion.positions.isnan().any(1).cpu()
    assert lost[motion.system_ptr[1] : motion.system_ptr[2]].all()
    assert not lost[: motion.system_ptr[1]].any()


VOLUME, STIFFNESS = 1000.0, 2.0
KT = 1e-4 * VOLUME * STIFFNESS  # for volumes that vary by 1 %


def solids(n_systems: int, isotropic: bool, error: float) -> Motion:
    """Return elastic solids in equilibrium, with an estimate of their stiffness that is off."""
    generator = torch.Generator().manual_seed(3)
    unit = torch.eye(3, dtype=torch.float64)
    noise = torch.randn(n_systems, 3, 3, dtype=torch.float64, generator=generator)
    strain = noise[:, :1, :1] * unit / 3 if isotropic else (noise + noise.mT) / 12**0.5
    cell = 10 * torch.linalg.matrix_exp(0.01 * strain)
    motion = Motion.zeros(torch.zeros(n_systems, 3).double(), cell, torch.ones(n_systems).long())
    motion.done_cell.copy_(cell)
    motion.inverse_mass.fill_(1.0)
    motion.temperature[:, 0] = KT
    motion.stiffness.fill_(error * STIFFNESS)
    motion.reset(0)
    return motion


def totals_of(cell: torch.Tensor) -> torch.Tensor:
    """Return totals whose virial is that of ``3 V B |S|^2 / 2`` with the logarithmic strain S."""
    squares, vectors = torch.linalg.eigh((cell.mT @ cell).cpu() / VOLUME ** (2 / 3))
    strain = vectors @ torch.diag_embed(squares.log() / 2) @ vectors.mT
    totals = torch.zeros(len(cell), 11, dtype=torch.float64)
    totals[:, 1:10] = (3 * VOLUME * STIFFNESS * strain).flatten(1)
    return totals.to(cell.device)


def volumes_of(motion: Motion, module, k: float, isotropic: bool, n_actions: int) -> np.ndarray:
    """Let a barostat act that would relieve a share k; return logarithms of volumes."""
    timestep, seen = 0.5, []
    settings = Barostat(0.0, k / STIFFNESS, timestep, every=1, isotropic=isotropic)
    for step in range(1, n_actions + 1):
        motion.clock.fill_(step)
        module.press(motion, totals_of(motion.cell), Integration(timestep, seed=11), settings)
        motion.done_cell.copy_(motion.cell)
        seen.append((torch.linalg.det(motion.cell).cpu() / VOLUME).log().numpy())
    check_strain(motion)
    return np.stack(seen)


@pytest.mark.parametrize(
    ("k", "error", "isotropic"),
    [
        (k, error, (i + j) % 2 == 0)  # each pair of values
        for i, k in enumerate([0.01, 0.3, 2.5, 100])
        for j, error in enumerate([0.3, 3])
    ],
)
def test_volumes_of_solids_vary_as_they_should(k, error, isotropic, device):
    """The variance is exact at any rate; a wrong stiffness counts by half of what is relieved."""
    module = reference if device == "cpu" else kernels
    motion = on(device, solids(1000, isotropic, error))
    seen = volumes_of(motion, module, k, isotropic, 150)[30:]
    share = min(k, SHARE / error)
    independent = 1000 * (1 + 120 * share / 2)
    expected = KT / (VOLUME * STIFFNESS) * (1 - error * share / 2) / (1 - share / 2)
    sigmas = 4 * (2 / independent) ** 0.5
    assert seen.var() == pytest.approx(expected, rel=sigmas + 0.01)
    assert seen.mean() == pytest.approx(expected, abs=4 * (expected / independent) ** 0.5)
    one, other = seen[:-1] - seen.mean(), seen[1:] - seen.mean()
    assert (one * other).mean() / seen.var() == pytest.approx(1 - share, abs=0.02)
    assert stats.kstest(seen[-1], stats.norm(expected, expected**0.5).cdf).pvalue > 1e-4


MASS, FORCE_CONSTANT, LENGTH = 14.0, 25.0, 1.1  # of a molecule of two atoms
SMALL, SOFT, COLD = 20.0, 0.04, 0.0025  # volume of its cell, bulk modulus, and thermal energy


def molecules(n_systems: int) -> Motion:
    """Return molecules in equilibrium, one per cell, whose bonds resist an affine strain most."""
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    bonds = torch.nn.functional.normalize(random(n_systems, 3))
    bonds *= LENGTH + (COLD / FORCE_CONSTANT) ** 0.5 * random(n_systems, 1)
    volumes = SMALL + (COLD * SMALL / SOFT) ** 0.5 * random(n_systems)
    cell = torch.eye(3).double() * volumes.pow(1 / 3)[:, None, None]
    positions = torch.stack([-bonds / 2, bonds / 2], 1).flatten(0, 1)
    motion = Motion.zeros(positions, cell, torch.full((n_systems,), 2))
    motion.done_positions.copy_(positions)
    motion.done_cell.copy_(cell)
    motion.done_velocities.copy_((COLD / MASS) ** 0.5 * random(2 * n_systems, 3))
    motion.inverse_mass.fill_(1 / MASS)
    motion.temperature[:, 0] = COLD
    motion.stream.copy_(torch.arange(n_systems))
    motion.stiffness.fill_(SOFT + FORCE_CONSTANT * LENGTH**2 / (9 * SMALL))
    motion.reset(0)
    motion.window.copy_(torch.tensor([0, 10_000]))
    return motion


def forces_and_totals(motion: Motion) -> tuple[torch.Tensor, torch.Tensor]:
    """Return forces and totals of molecules in elastic cells."""
    first, second = motion.positions.unflatten(0, (-1, 2)).unbind(1)
    bonds = second - first
    pull = FORCE_CONSTANT * (1 - LENGTH / bonds.norm(dim=1, keepdim=True)) * bonds
    volumes = torch.linalg.det(motion.cell)
    virial = pull[:, :, None] * bonds[:, None, :]
    virial += (SOFT * (volumes / SMALL - 1) * volumes)[:, None, None] * torch.eye(3).to(virial)
    totals = torch.zeros(len(bonds), 11, dtype=torch.float64, device=bonds.device)
    totals[:, 1:10] = virial.flatten(1)
    return torch.stack([pull, -pull], 1).flatten(0, 1), totals


def test_bonds_stay_in_equilibrium(device):
    """The barostat neither heats nor cools vibrations that are faster than its actions."""
    module = reference if device == "cpu" else kernels
    step = integrators.advance if device == "cpu" else advance
    integration = Integration(0.0982, seed=7, friction=0.05)
    settings = Barostat(0.0, 1e6, 1.0, every=10, isotropic=True)
    motion, seen = on(device, molecules(2000)), []
    forces, totals = forces_and_totals(motion)
    step(motion, forces, totals, integration, finish=False)
    module.press(motion, totals, integration, settings)
    for _ in range(400):
        forces, totals = forces_and_totals(motion)
        step(motion, forces, totals, integration)
        first, second = motion.done_positions.unflatten(0, (-1, 2)).unbind(1)
        one, other = motion.done_velocities.unflatten(0, (-1, 2)).unbind(1)
        lengths = (second - first).norm(dim=1)
        speeds = ((other - one) * (second - first)).sum(1) / lengths
        volumes = torch.linalg.det(motion.done_cell)
        values = (
            MASS / 2 * speeds.square().mean() / COLD,
            FORCE_CONSTANT * (lengths - LENGTH).square().mean() / COLD,
            volumes.var() * SOFT / (COLD * SMALL),
        )
        seen.append(torch.stack(values))
        module.press(motion, totals, integration, settings)
    check_strain(motion)
    assert (motion.clock == 400).all()
    assert (motion.pressed == 400).all()
    found = torch.stack(seen[200:]).mean(0).tolist()
    assert found == pytest.approx([1.0, 1.0, 1.0], abs=0.08)


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("k", [0.01, 1, 100])
def test_solids_move_alike_in_kernels_and_the_reference(k, isotropic, device):
    found = volumes_of(on(device, solids(2, isotropic, 1)), kernels, k, isotropic, 25)
    expected = volumes_of(solids(2, isotropic, 1), reference, k, isotropic, 25)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
