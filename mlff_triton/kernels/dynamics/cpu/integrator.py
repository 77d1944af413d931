"""Velocity Verlet and Langevin dynamics, see `mlff_triton.kernels.dynamics.integrator`."""

from __future__ import annotations

import math

from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import exact_inlined, exact_loop, run
from mlff_triton.kernels.dynamics.cpu.random import Source, normals
from mlff_triton.kernels.dynamics.reference.integrator import can_finish
from mlff_triton.kernels.dynamics.reference.random import THERMOSTAT
from mlff_triton.kernels.types.motion import Integration, Motion


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
    if finish:
        clock += 1
        motion.done_cell.copy_(motion.cell)
        motion.clock.fill_(clock)
        motion.oldest.clamp_(min=int(totals[:, -1].max()))
    pending = motion.positions, motion.velocities, motion.heat
    done = motion.done_positions, motion.done_velocities, motion.done_heat
    systems = motion.system_ptr, motion.stream, motion.temperature, motion.drift, motion.scale
    source = Source.of(integration.seed, clock, THERMOSTAT)
    constants = integration.timestep, integration.friction > 0, integration.damping
    atoms = *pending, *done, motion.inverse_mass, forces
    run(_advance, len(forces), *atoms, *systems, *constants, clock, source, finish, start)
    if start:
        motion.started.fill_(clock)


@exact_inlined
def kinetic_energy(velocity, inverse_mass):
    """Return the kinetic energy of an atom in eV; atoms that do not move have unit mass."""
    x, y, z = velocity
    return 0.5 * (x * x + y * y + z * z) / (inverse_mass if inverse_mass > 0 else 1.0)


@exact_inlined
def _settle(velocities, positions, i, drift, scale):
    """Subtract the overall motion of a system from an atom, and scale its velocity."""
    x, y, z = positions[i, 0], positions[i, 1], positions[i, 2]
    u, v, w, a, b, c = drift
    velocities[i, 0] = (velocities[i, 0] - (u + (b * z - c * y))) * scale
    velocities[i, 1] = (velocities[i, 1] - (v + (c * x - a * z))) * scale
    velocities[i, 2] = (velocities[i, 2] - (w + (a * y - b * x))) * scale


@exact_loop
def _advance(
    positions, velocities, heat, done_positions, done_velocities, done_heat, inverse_mass, forces,
    system_ptr, stream, temperature, drift, scale, timestep, has_friction, damping, clock,
    source, finish, start, first, last,
):  # fmt: skip
    h, s = 0.5 * timestep, 0
    for i in range(first, last):
        while i >= system_ptr[s + 1]:
            s += 1
        mass = inverse_mass[i]
        if finish:
            done_heat[i] = heat[i]
            for axis in range(3):
                done_positions[i, axis] = positions[i, axis]
                kick = h * mass * forces[i, axis]
                done_velocities[i, axis] = velocities[i, axis] + kick
        else:
            moves = drift[s, 0], drift[s, 1], drift[s, 2], drift[s, 3], drift[s, 4], drift[s, 5]
            _settle(done_velocities, done_positions, i, moves, scale[s])
        if not start:
            continue
        velocity = (
            done_velocities[i, 0] + h * mass * forces[i, 0],
            done_velocities[i, 1] + h * mass * forces[i, 1],
            done_velocities[i, 2] + h * mass * forces[i, 2],
        )
        heat[i] = done_heat[i]
        later = velocity
        if has_friction:
            kt = temperature[s, 0] + temperature[s, 1] * clock
            spread = math.sqrt((1 - damping * damping) * kt * mass)
            x, y, z, _ = normals(source, i - system_ptr[s], stream[s])
            later = (
                damping * velocity[0] + spread * x,
                damping * velocity[1] + spread * y,
                damping * velocity[2] + spread * z,
            )
            heat[i] += kinetic_energy(later, mass) - kinetic_energy(velocity, mass)
        for axis in range(3):
            positions[i, axis] = (done_positions[i, axis] + h * velocity[axis]) + h * later[axis]
            velocities[i, axis] = later[axis]
