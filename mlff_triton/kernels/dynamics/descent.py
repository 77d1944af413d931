"""Minimization of the energy of each system by FIRE 2.0.

J. Guénolé et al., Comput. Mater. Sci. 175, 109584 (2020),
https://doi.org/10.1016/j.commatsci.2020.109584. Atoms of unit mass move downhill, and their
velocities v turn towards the forces F. Each system has its time step h and mixing a. If the power
F . v is positive, h grows and a shrinks after a few such steps. Otherwise, half of the last step
is undone, v is set to zero, h shrinks, and a takes its first value again. Then

    v += h F
    v = (1 - a) v + a |v| F / |F|
    x += h v

No atom moves further than a limit. Atoms without inverse mass do not move, and forces on them do
not count. A system whose largest force is small enough stays at rest.

As in `mlff_triton.kernels.dynamics.integrator`, invalid steps change nothing. A first kernel sums
over each system and decides, and a second one moves the atoms.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.dynamics.integrator import can_finish, note_age
from mlff_triton.kernels.dynamics.vectors import add, load_vectors, store_vectors, times
from mlff_triton.kernels.neighbors.motion import dot
from mlff_triton.kernels.types.motion import ATOMS, Descent, Motion

_BLOCK = tl.constexpr(1024)


@triton.jit
def _load_forces(forces_ptr, inverse_mass_ptr, atom, live):
    """Load the forces on atoms that move."""
    moves = tl.load(inverse_mass_ptr + atom, live, other=0.0) > 0
    return load_vectors(forces_ptr, atom, live & moves)


@triton.jit
def _sums(velocities_ptr, forces_ptr, inverse_mass_ptr, begin, end):
    """Return ``F . v``, ``v . v``, ``F . F`` of a system, and its largest force."""
    zero = tl.zeros((_BLOCK,), tl.float64)
    power, speed, slope, largest = zero, zero, zero, zero
    for start in range(begin, end, _BLOCK):
        atom = start + tl.arange(0, _BLOCK)
        live, atom = atom < end, atom.to(tl.int64)
        velocity = load_vectors(velocities_ptr, atom, live)
        force = _load_forces(forces_ptr, inverse_mass_ptr, atom, live)
        square = dot(force, force)
        power += dot(force, velocity)
        speed += dot(velocity, velocity)
        slope += square
        largest = tl.maximum(largest, square)
    return tl.sum(power), tl.sum(speed), tl.sum(slope), tl.sqrt(tl.max(largest))


@triton.jit
def _decide_kernel(
    velocities_ptr,
    inverse_mass_ptr,
    system_ptr,
    descent_ptr,
    progress_ptr,
    clock_ptr,
    window_ptr,
    forces_ptr,
    totals_ptr,
    n_systems,
    programs,
    MAX_FORCE: tl.constexpr,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    GROWTH: tl.constexpr,
    CUT: tl.constexpr,
    DELAY: tl.constexpr,
    MIXING: tl.constexpr,
    DECAY: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Decide how a system moves. Grid: one program per system.

    Reads pending velocities, ``forces[N, 3]`` and ``totals[B, 11]``. Writes ``descent[B, 6]``: time
    step, mixing, steps downhill, and factors of the old velocities in the positions, of the old
    velocities in the new ones, and of the forces in these. Writes ``progress[B, 2]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    system = tl.program_id(0)
    clock = tl.load(clock_ptr + system * programs)
    if can_finish(clock, window_ptr, totals_ptr, n_systems):
        begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
        power, speed, slope, largest = _sums(
            velocities_ptr, forces_ptr, inverse_mass_ptr, begin, end
        )
        row = descent_ptr + 6 * system
        timestep, mixing, count = tl.load(row), tl.load(row + 1), tl.load(row + 2)
        downhill = power > 0
        count = tl.where(downhill, count + 1, 0.0)
        grows = count > DELAY
        longest, shortest = 0 * timestep + LONGEST, 0 * timestep + SHORTEST  # float64
        longer = tl.minimum(timestep * GROWTH, longest)
        shorter = tl.where(speed > 0, tl.maximum(timestep * CUT, shortest), timestep)
        timestep = tl.where(downhill, tl.where(grows, longer, timestep), shorter)
        mixing = tl.where(downhill, mixing, 0 * mixing + MIXING)
        mixing = tl.where(grows, mixing * DECAY, mixing)
        kept = tl.where(downhill, 1.0, 0.0)
        squared = kept * (speed + 2 * timestep * power) + timestep * timestep * slope
        turn = tl.sqrt(squared / tl.where(slope > 0, slope, 1.0))
        push = (1 - mixing) * timestep + mixing * turn
        done = (largest < MAX_FORCE) & (slope == slope)  # and no force is NaN
        tl.store(row, timestep)
        tl.store(row + 1, mixing)
        tl.store(row + 2, count)
        tl.store(row + 3, tl.where(done, 0.0, (kept - 1) * 0.5 * timestep))
        tl.store(row + 4, tl.where(done, 0.0, kept * (1 - mixing)))
        tl.store(row + 5, tl.where(done, 0.0, push))
        iterations = tl.load(progress_ptr + 2 * system)
        tl.store(progress_ptr + 2 * system, iterations + tl.where(done, 0.0, 1.0))
        tl.store(progress_ptr + 2 * system + 1, largest)


@triton.jit
def _move_kernel(
    positions_ptr,
    velocities_ptr,
    done_positions_ptr,
    inverse_mass_ptr,
    system_ptr,
    descent_ptr,
    clock_ptr,
    window_ptr,
    oldest_ptr,
    forces_ptr,
    totals_ptr,
    n_systems,
    MAX_MOVE: tl.constexpr,
    ATOMS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Move atoms as decided. Grid: (blocks of ``ATOMS`` atoms, B).

    Reads ``descent[B, 6]``, ``forces[N, 3]`` and ``totals[B, 11]``. Writes the positions that are
    done, and the pending positions and velocities.
    """
    wait_for_previous(EARLY_LAUNCH)
    part, system = tl.program_id(0), tl.program_id(1)
    program = system * tl.num_programs(0) + part
    clock = tl.load(clock_ptr + program)
    if can_finish(clock, window_ptr, totals_ptr, n_systems):
        begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
        local = part * ATOMS + tl.arange(0, ATOMS)
        live, atom = begin + local < end, (begin + local).to(tl.int64)
        position = load_vectors(positions_ptr, atom, live)
        velocity = load_vectors(velocities_ptr, atom, live)
        force = _load_forces(forces_ptr, inverse_mass_ptr, atom, live)
        row = descent_ptr + 6 * system
        timestep, back = tl.load(row), tl.load(row + 3)
        keep, push = tl.load(row + 4), tl.load(row + 5)
        move = times(back, velocity)
        velocity = add(times(keep, velocity), push, force)
        move = add(move, timestep, velocity)
        length = tl.sqrt(dot(move, move))
        limit = 0 * length + MAX_MOVE
        share = limit / tl.maximum(length, limit)
        store_vectors(done_positions_ptr, atom, live, position)
        store_vectors(positions_ptr, atom, live, add(position, share, move))
        store_vectors(velocities_ptr, atom, live, times(share, velocity))
        tl.store(clock_ptr + program, clock + 1)
        if program == 0:
            note_age(oldest_ptr, totals_ptr, n_systems)


def descend(motion: Motion, forces: Tensor, totals: Tensor, descent: Descent) -> None:
    """Take a step of a minimization if its forces are valid, in place.

    Parameters
    ----------
    motion : Motion
        The systems. Pending positions become the done ones.
    forces : float64 [N, 3]
        Forces at the pending positions, eV/Å.
    totals : float64 [B, 11]
        Totals of the same step, with the status.
    descent : Descent
        Constants of the minimization.
    """
    check_device(motion.positions, forces, totals)
    n_systems, programs = motion.clock.shape
    with torch.cuda.device_of(forces):
        _decide_kernel[(n_systems,)](
            motion.velocities,
            motion.inverse_mass,
            motion.system_ptr,
            motion.descent,
            motion.progress,
            motion.clock,
            motion.window,
            forces,
            totals,
            n_systems,
            programs,
            MAX_FORCE=descent.max_force,
            SHORTEST=descent.shortest,
            LONGEST=descent.longest,
            GROWTH=descent.growth,
            CUT=descent.cut,
            DELAY=descent.delay,
            MIXING=descent.mixing,
            DECAY=descent.decay,
            num_warps=4,
            **early_launch(forces),
        )
        _move_kernel[(programs, n_systems)](
            motion.positions,
            motion.velocities,
            motion.done_positions,
            motion.inverse_mass,
            motion.system_ptr,
            motion.descent,
            motion.clock,
            motion.window,
            motion.oldest,
            forces,
            totals,
            n_systems,
            MAX_MOVE=descent.max_move,
            ATOMS=ATOMS,
            num_warps=4,
            **early_launch(forces),
        )
