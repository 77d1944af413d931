"""Velocity Verlet and Langevin dynamics, see `mlff_triton.kernels.dynamics.integrator`."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.reference.random import THERMOSTAT, normals
from mlff_triton.kernels.types.motion import Integration, Motion
from mlff_triton.kernels.types.status import STALE


def advance(
    motion: Motion,
    forces: Tensor,
    totals: Tensor,
    integration: Integration,
    *,
    finish: bool = True,
    start: bool = True,
) -> None:
    """Finish a step if its forces are valid, and start the next one, in place.

    Arguments are those of `mlff_triton.kernels.dynamics.integrator.advance`.
    """
    clock = int(motion.clock[0, 0])
    if not (can_finish(motion, totals) if finish else motion.started[0, 0] < clock):
        return
    inverse_mass = motion.inverse_mass[:, None]
    kick = 0.5 * integration.timestep * inverse_mass * forces
    system = system_of_atoms(motion)
    if finish:
        motion.done_positions.copy_(motion.positions)
        motion.done_velocities.copy_(motion.velocities + kick)
        motion.done_cell.copy_(motion.cell)
        motion.done_heat.copy_(motion.heat)
        motion.clock.add_(1)
        motion.oldest.clamp_(min=int(totals[:, -1].max()))
        clock += 1
    else:
        velocity, spin = motion.drift[system].split(3, dim=1)
        motion.done_velocities.sub_(velocity + torch.linalg.cross(spin, motion.done_positions))
        motion.done_velocities.mul_(motion.scale[system, None])
    if start:
        _start(motion, kick, integration, clock, system)


def can_finish(motion: Motion, totals: Tensor) -> bool:
    """Return True if a step is valid and lies in the current block."""
    begin, end = motion.window.tolist()
    return bool(totals[:, -1].max() < STALE) and begin <= int(motion.clock[0, 0]) < end


def _start(
    motion: Motion, kick: Tensor, integration: Integration, clock: int, system: Tensor
) -> None:
    """Start the step that follows ``clock`` steps."""
    h, damping = 0.5 * integration.timestep, integration.damping
    inverse_mass = motion.inverse_mass[:, None]
    position, velocity = motion.done_positions, motion.done_velocities + kick
    motion.heat.copy_(motion.done_heat)
    if integration.friction > 0:
        position = position + h * velocity
        before = kinetic_energies(motion, velocity)
        kt = thermal_energy(motion, clock)[system, None]
        local = torch.arange(len(position), device=kick.device) - motion.system_ptr[system]
        stream = motion.stream[system]
        noise = normals(integration.seed, clock, THERMOSTAT, local, stream)[:3].T
        velocity = damping * velocity + ((1 - damping**2) * kt * inverse_mass).sqrt() * noise
        motion.heat.add_(kinetic_energies(motion, velocity) - before)
        motion.positions.copy_(position + h * velocity)
    else:
        motion.positions.copy_(position + 2 * h * velocity)
    motion.velocities.copy_(velocity)
    motion.started.fill_(clock)


def system_of_atoms(motion: Motion) -> Tensor:
    """Return the system of each atom, int64 [N]."""
    counts = motion.system_ptr.diff().long()
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def kinetic_energies(motion: Motion, velocities: Tensor) -> Tensor:
    """Return the kinetic energy of each atom in eV, float64 [N]."""
    return 0.5 * velocities.square().sum(1) / divisors(motion)


def divisors(motion: Motion) -> Tensor:
    """Return inverse masses to divide by, 1 for atoms that do not move, float64 [N]."""
    return torch.where(motion.inverse_mass > 0, motion.inverse_mass, 1.0)


def thermal_energy(motion: Motion, step: int) -> Tensor:
    """Return ``kT`` of each system at a step in eV, float64 [B]."""
    first, slope = motion.temperature.unbind(1)
    return first + slope * step
