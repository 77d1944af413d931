"""Velocity Verlet and Langevin dynamics: one kernel from forces to forces.

A step is a half kick, a drift, and another half kick with the new forces. With ``h`` half the time
step,

    v += h F / m
    x += h v          v = c v + sqrt((1 - c^2) kT / m) xi          x += h v
    v += h F / m

The thermostat in the middle of the drift damps by ``c = exp(-friction * timestep)`` and adds normal
numbers ``xi``: BAOAB, B. Leimkuhler, C. Matthews, J. Chem. Phys. 138, 174102 (2013),
https://doi.org/10.1063/1.4802990.

Atoms without inverse mass rest: neither forces nor the thermostat give them a velocity.

A step counts only if its forces are valid. If the neighbor matrix is no longer valid, or a position
is not finite, the kernel changes nothing, however often it is launched. Once there is a new matrix,
the same launches continue the simulation.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.dynamics.random import THERMOSTAT, normals
from mlff_triton.kernels.dynamics.vectors import add, load_vectors, store_vectors, times
from mlff_triton.kernels.types.motion import ATOMS, Integration, Motion
from mlff_triton.kernels.types.status import STALE

_STALE = tl.constexpr(STALE)
_WIDTH = tl.constexpr(11)  # totals of a system; the last one is its highest status


@triton.jit
def highest_status(totals_ptr, n_systems):
    """Return the highest status of any system."""
    lane = tl.arange(0, 128)
    worst = tl.zeros((128,), tl.float64)
    for start in range(0, n_systems, 128):
        system = start + lane
        status = totals_ptr + _WIDTH * system + _WIDTH - 1
        worst = tl.maximum(worst, tl.load(status, system < n_systems, other=0.0))
    return tl.max(worst).to(tl.int32)


@triton.jit
def kinetic(velocities, inverse_mass):
    """Return kinetic energies, 0 for atoms that do not move."""
    x, y, z = velocities
    return tl.fma(z, z, tl.fma(y, y, x * x)) / tl.where(inverse_mass > 0, inverse_mass, 1.0) * 0.5


@triton.jit
def _drift(position, velocity, inverse_mass, timestep, damping, kt, noise, LANGEVIN: tl.constexpr):
    """Move atoms for a time step; return positions, velocities, and the heat received."""
    if LANGEVIN:
        position = add(position, 0.5 * timestep, velocity)
        before = kinetic(velocity, inverse_mass)
        width = tl.sqrt((1 - damping * damping) * kt * inverse_mass)
        velocity = add(times(damping, velocity), width, noise)
        position = add(position, 0.5 * timestep, velocity)
        heat = kinetic(velocity, inverse_mass) - before
    else:
        position = add(position, timestep, velocity)
        heat = tl.zeros_like(inverse_mass)
    return position, velocity, heat


@triton.jit
def _without_drift(position, velocity, drift_ptr):
    """Subtract a translation and a rotation about the origin from velocities."""
    x, y, z = position
    ux, uy, uz = tl.load(drift_ptr), tl.load(drift_ptr + 1), tl.load(drift_ptr + 2)
    wx, wy, wz = tl.load(drift_ptr + 3), tl.load(drift_ptr + 4), tl.load(drift_ptr + 5)
    return (
        velocity[0] - (ux + (wy * z - wz * y)),
        velocity[1] - (uy + (wz * x - wx * z)),
        velocity[2] - (uz + (wx * y - wy * x)),
    )


@triton.jit
def can_finish(clock, window_ptr, totals_ptr, n_systems):
    """Return True if a step is valid and lies in the current block."""
    valid = highest_status(totals_ptr, n_systems) < _STALE
    return valid & (clock >= tl.load(window_ptr)) & (clock < tl.load(window_ptr + 1))


@triton.jit
def note_age(oldest_ptr, totals_ptr, n_systems):
    """Keep the highest age of the neighbor matrix; the status of a valid step is this age."""
    worst = highest_status(totals_ptr, n_systems)
    tl.store(oldest_ptr, tl.maximum(tl.load(oldest_ptr), worst))


@triton.jit
def _is_due(clock, started, window_ptr, totals_ptr, n_systems, FINISH: tl.constexpr):
    """Return True if a step can be finished or, without FINISH, if the next one is to start."""
    return can_finish(clock, window_ptr, totals_ptr, n_systems) if FINISH else started < clock


@triton.jit
def _advance_kernel(
    positions_ptr,
    velocities_ptr,
    cell_ptr,
    heat_ptr,
    done_positions_ptr,
    done_velocities_ptr,
    done_cell_ptr,
    done_heat_ptr,
    inverse_mass_ptr,
    system_ptr,
    stream_ptr,
    temperature_ptr,
    scale_ptr,
    drift_ptr,
    clock_ptr,
    started_ptr,
    window_ptr,
    oldest_ptr,
    forces_ptr,
    totals_ptr,
    n_systems,
    seed,
    timestep: tl.float64,
    damping: tl.float64,
    FINISH: tl.constexpr,
    START: tl.constexpr,
    LANGEVIN: tl.constexpr,
    ATOMS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Finish a step with the forces at its end, start the next one, or both.

    Grid: a program per ``ATOMS`` atoms, and systems. Reads the state of `Motion`, ``forces[N, 3]``
    and ``totals[B, 11]``. FINISH writes the state that is done, ``clock[B, P]`` and ``oldest``.
    START writes the pending state and ``started[B, P]``. Without FINISH, it first subtracts the
    motion ``drift[B, 6]`` from the velocities, and multiplies them by ``scale[B]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    part, system = tl.program_id(0), tl.program_id(1)
    program = system * tl.num_programs(0) + part
    clock, started = tl.load(clock_ptr + program), tl.load(started_ptr + program)
    if _is_due(clock, started, window_ptr, totals_ptr, n_systems, FINISH):
        begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
        local = part * ATOMS + tl.arange(0, ATOMS)
        live, atom = begin + local < end, (begin + local).to(tl.int64)
        inverse_mass = tl.load(inverse_mass_ptr + atom, live, other=1.0)
        duration = timestep + 0 * inverse_mass  # float64, also under the interpreter
        kick = 0.5 * duration * inverse_mass
        force = load_vectors(forces_ptr, atom, live)
        if FINISH:
            position = load_vectors(positions_ptr, atom, live)
            velocity = load_vectors(velocities_ptr, atom, live)
            velocity = add(velocity, kick, force)
            heat = tl.load(heat_ptr + atom, live, other=0.0)
            tl.store(done_heat_ptr + atom, heat, live)
            store_vectors(done_positions_ptr, atom, live, position)
            clock += 1
            tl.store(clock_ptr + program, clock)
            if part == 0:
                entry = tl.arange(0, 16)
                entries = tl.load(cell_ptr + 9 * system + entry, entry < 9)
                tl.store(done_cell_ptr + 9 * system + entry, entries, entry < 9)
            if program == 0:
                note_age(oldest_ptr, totals_ptr, n_systems)
        else:
            heat = tl.load(done_heat_ptr + atom, live, other=0.0)
            position = load_vectors(done_positions_ptr, atom, live)
            velocity = load_vectors(done_velocities_ptr, atom, live)
            velocity = _without_drift(position, velocity, drift_ptr + 6 * system)
            scale = tl.load(scale_ptr + system)
            velocity = times(scale, velocity)
        store_vectors(done_velocities_ptr, atom, live, velocity)
        if START:
            velocity = add(velocity, kick, force)
            slope = tl.load(temperature_ptr + 2 * system + 1)
            kt = tl.fma(slope, clock.to(tl.float64), tl.load(temperature_ptr + 2 * system))
            noise = velocity
            if LANGEVIN:
                stream = tl.load(stream_ptr + system)
                x, y, z, _ = normals(seed, clock, THERMOSTAT, local, stream)
                noise = x, y, z
            position, velocity, received = _drift(
                position, velocity, inverse_mass, duration, damping, kt, noise, LANGEVIN
            )
            tl.store(heat_ptr + atom, heat + received, live)
            store_vectors(positions_ptr, atom, live, position)
            store_vectors(velocities_ptr, atom, live, velocity)
            tl.store(started_ptr + program, clock)


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

    Parameters
    ----------
    motion : Motion
        The state of the simulation.
    forces : float64 [N, 3]
        Forces at the pending positions, or at the current ones without ``finish``, eV/Å.
    totals : float64 [B, 11]
        Totals of the same step, with the status.
    integration : Integration
        Time step, thermostat and seed.
    finish : bool
        If True, finish the step that is pending, if it lies in the current block of steps.
    start : bool
        If True, start a step from each step that was finished. Without ``finish``, `Motion.drift`
        is first subtracted from the velocities, which are then multiplied by `Motion.scale`.
    """
    check_device(motion.positions, forces, totals)
    n_systems, programs = motion.clock.shape
    with torch.cuda.device_of(forces):
        _advance_kernel[(programs, n_systems)](
            motion.positions,
            motion.velocities,
            motion.cell,
            motion.heat,
            motion.done_positions,
            motion.done_velocities,
            motion.done_cell,
            motion.done_heat,
            motion.inverse_mass,
            motion.system_ptr,
            motion.stream,
            motion.temperature,
            motion.scale,
            motion.drift,
            motion.clock,
            motion.started,
            motion.window,
            motion.oldest,
            forces,
            totals,
            n_systems,
            integration.seed,
            integration.timestep,
            integration.damping,
            FINISH=finish,
            START=start,
            LANGEVIN=integration.friction > 0,
            ATOMS=ATOMS,
            num_warps=4,
            **early_launch(forces),
        )
