"""Stochastic rescaling of velocities, see `mlff_triton.kernels.dynamics.rescaling`."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.reference.integrator import (
    divisors,
    system_of_atoms,
    thermal_energy,
)
from mlff_triton.kernels.dynamics.reference.random import RESCALING, normals, uniforms
from mlff_triton.kernels.types.motion import Integration, Motion, Rescaling

ATTEMPTS = 32
SINGULAR = 1e-9


def choose_scale(motion: Motion, integration: Integration, rescaling: Rescaling) -> None:
    """Choose the factor by which `advance` multiplies the velocities before the next step.

    Arguments are those of `mlff_triton.kernels.dynamics.rescaling.choose_scale`.
    """
    step = int(motion.clock[0, 0])
    if motion.started[0, 0] >= step:
        return
    twice = kinetic_tensors(motion).diagonal(dim1=1, dim2=2).sum(1)
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


def kinetic_tensors(motion: Motion) -> Tensor:
    """Return ``sum m v_a v_b`` of each system, float64 [B, 3, 3]."""
    v = motion.done_velocities
    products = v[:, :, None] * v[:, None, :] / divisors(motion)[:, None, None]
    sums = torch.zeros_like(motion.cell)
    return sums.index_add_(0, system_of_atoms(motion), products)
