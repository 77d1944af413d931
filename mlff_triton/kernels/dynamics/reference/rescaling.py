"""Stochastic rescaling of velocities and cells, see `mlff_triton.kernels.dynamics.rescaling`."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.reference.integrator import (
    divisors,
    kinetic_energies,
    system_of_atoms,
    thermal_energy,
)
from mlff_triton.kernels.dynamics.reference.random import BAROSTAT, RESCALING, normals, uniforms
from mlff_triton.kernels.types.motion import Barostat, Integration, Motion, Rescaling

ATTEMPTS = 32
SINGULAR = 1e-9
PAIRS = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


def choose_scale(motion: Motion, integration: Integration, rescaling: Rescaling) -> None:
    """Choose the factor by which `advance` multiplies the velocities before the next step.

    Arguments are those of `mlff_triton.kernels.dynamics.rescaling.choose_scale`.
    """
    step = int(motion.clock[0, 0])
    if motion.started[0, 0] >= step:
        return
    twice = _kinetic_tensors(motion).diagonal(dim1=1, dim2=2).sum(1)
    drift, overall = _overall_motion(motion)
    motion.drift.copy_(drift)
    rest = twice - overall
    stream, seed = motion.stream, integration.seed
    r = normals(seed, step, RESCALING, torch.zeros_like(stream), stream)[0]
    moving = (motion.inverse_mass > 0).double()
    count = torch.zeros_like(motion.work).index_add_(0, system_of_atoms(motion), moving)
    n = 3 * count - motion.lost
    squares = 2 * _gamma(seed, step, stream, 0.5 * (n - 1))
    decay = rescaling.decay(integration.timestep)
    share = (1 - decay) * thermal_energy(motion, step) / rest
    squared = decay + share * (r**2 + squares) + 2 * r * (decay * share).sqrt()
    squared = torch.where(rest > 0, squared.clamp(min=0), 1.0)
    motion.scale.copy_(squared.sqrt())
    motion.work.add_(0.5 * ((squared - 1) * rest - overall))


def _overall_motion(motion: Motion) -> tuple[Tensor, Tensor]:
    """Return the motion that each system loses, as in `Motion.drift`, and twice its energy."""
    system, n_systems = system_of_atoms(motion), len(motion.cell)
    mass = ((motion.inverse_mass > 0) / divisors(motion))[:, None]

    def sums(values: Tensor) -> Tensor:
        return values.new_zeros(n_systems, *values.shape[1:]).index_add_(0, system, values)

    v, total = motion.done_velocities, sums(mass)
    velocity, center = sums(mass * v) / total, sums(mass * motion.done_positions) / total
    arm = motion.done_positions - center[system]
    angular_momentum = sums(mass * torch.linalg.cross(arm, v))
    second = sums(mass[:, :, None] * arm[:, :, None] * arm[:, None, :])
    trace = second.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    unit = torch.eye(3, dtype=v.dtype, device=v.device)
    inertia = trace * unit - second
    solvable = inertia + (2 * SINGULAR * trace + (trace == 0)) * unit
    spin = torch.linalg.solve(solvable, angular_momentum)
    turns, moves = (motion.lost == 6)[:, None], (motion.lost > 0)[:, None]
    spin, velocity = spin * turns, velocity * moves
    overall = (total * velocity.square()).sum(1) + 2 * (spin * angular_momentum).sum(1)
    overall = overall - (spin[:, None] @ inertia @ spin[:, :, None])[:, 0, 0]
    return torch.cat([velocity - torch.linalg.cross(spin, center), spin], 1), overall


def _gamma(seed: int, step: int, stream: Tensor, shape: Tensor) -> Tensor:
    """Draw a gamma variate of each shape, float64 [B], by the method of Marsaglia and Tsang."""
    attempt = torch.arange(ATTEMPTS, device=shape.device)[None]
    streams = stream[:, None]
    d = shape[:, None] - 1 / 3
    x = normals(seed, step, RESCALING, 2 * attempt + 2, streams)[0]
    u = uniforms(seed, step, RESCALING, 2 * attempt + 3, streams)[0]
    root = 1 + x / (9 * d).sqrt()
    v = torch.where(root > 0, root**3, 1.0)
    accepted = (root > 0) & (u.log() < 0.5 * x**2 + d * (1 - v + v.log()))
    accepted[:, -1] = True
    first = accepted.int().argmax(1, keepdim=True)
    return (d * v).gather(1, first)[:, 0]


def press(motion: Motion, totals: Tensor, integration: Integration, barostat: Barostat) -> None:
    """Stretch cells and pending atoms if the barostat is to act after the last step that is done.

    Arguments are those of `mlff_triton.kernels.dynamics.rescaling.press`.
    """
    step, virial = int(motion.clock[0, 0]), totals[:, 1:10].unflatten(1, (3, 3))
    unit = torch.eye(3, dtype=virial.dtype, device=virial.device)
    if motion.owed[0, 1] == step:
        rest = (virial * (unit - _matrices(motion.strain[:, 1]))).sum((1, 2))
        motion.work.add_(motion.owed[:, 0] + 0.5 * rest)
        motion.owed[:, 1] = -1
    if motion.pressed[0] >= step or step % barostat.every:
        return
    strain = _choose_strain(motion, totals, integration, barostat, step)
    grown, shrunk = torch.linalg.matrix_exp(strain), torch.linalg.matrix_exp(-strain)
    for k, matrices in enumerate((grown, shrunk)):
        motion.strain[:, k] = torch.stack([matrices[:, a, b] for a, b in PAIRS], 1)
    motion.cell.copy_(motion.done_cell @ grown)
    system = system_of_atoms(motion)
    motion.positions.copy_((motion.positions[:, None] @ grown[system])[:, 0])
    before = kinetic_energies(motion, motion.velocities)
    motion.velocities.copy_((motion.velocities[:, None] @ shrunk[system])[:, 0])
    motion.heat.add_(kinetic_energies(motion, motion.velocities) - before)
    motion.owed[:, 0] = 0.5 * (virial * (grown - unit)).sum((1, 2))
    motion.owed[:, 1] = step + 1
    motion.pressed.fill_(step)
    motion.stretched.fill_(step)


def _matrices(elements: Tensor) -> Tensor:
    """Return symmetric matrices [B, 3, 3] from their elements [B, 6], as in `Motion.strain`."""
    matrices = elements.new_empty(len(elements), 3, 3)
    for k, (a, b) in enumerate(PAIRS):
        matrices[:, a, b] = matrices[:, b, a] = elements[:, k]
    return matrices


def _choose_strain(
    motion: Motion, totals: Tensor, integration: Integration, barostat: Barostat, step: int
) -> Tensor:
    """Return the symmetric matrix M of each system, float64 [B, 3, 3]."""
    virial = totals[:, 1:10].unflatten(1, (3, 3))
    volume = torch.linalg.det(motion.done_cell).abs()
    unit = torch.eye(3, dtype=torch.float64, device=volume.device)
    internal = (_kinetic_tensors(motion) - virial) / volume[:, None, None]
    excess = internal - barostat.pressure * unit
    rate = barostat.rate(integration.timestep)
    spread = (2 * thermal_energy(motion, step) * rate / volume).sqrt()
    stream, zero = motion.stream, torch.zeros_like(motion.stream)
    a, b, c, _ = normals(integration.seed, step, BAROSTAT, zero, stream)
    if barostat.isotropic:
        mean = excess.diagonal(dim1=1, dim2=2).mean(1)
        strain: Tensor = ((rate * mean + spread * a) / 3)[:, None, None] * unit
        return strain
    f, g, h, _ = normals(integration.seed, step, BAROSTAT, zero + 1, stream)
    noise = torch.stack([a, h / 2**0.5, g / 2**0.5, b, f / 2**0.5, c], 1)
    upper = torch.zeros_like(excess)
    rows, columns = torch.triu_indices(3, 3, device=volume.device)
    upper[:, rows, columns] = rate / 3 * excess[:, rows, columns]
    upper[:, rows, columns] += (spread / 3**0.5)[:, None] * noise
    return upper + upper.triu(1).mT


def _kinetic_tensors(motion: Motion) -> Tensor:
    """Return ``sum m v_a v_b`` of each system, float64 [B, 3, 3]."""
    v = motion.done_velocities
    products = v[:, :, None] * v[:, None, :] / divisors(motion)[:, None, None]
    sums = torch.zeros_like(motion.cell)
    return sums.index_add_(0, system_of_atoms(motion), products)
