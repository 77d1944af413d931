"""Minimization by FIRE 2.0, see `mlff_triton.kernels.dynamics.descent`."""

from __future__ import annotations

import math

from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import exact_inlined, exact_loop, run
from mlff_triton.kernels.dynamics.reference.integrator import can_finish
from mlff_triton.kernels.types.motion import Descent, Motion


def descend(motion: Motion, forces: Tensor, totals: Tensor, descent: Descent) -> None:
    """Take a step of a minimization if its forces are valid, in place.

    Arguments are those of `mlff_triton.kernels.dynamics.descent.descend`.
    """
    if not can_finish(motion, totals):
        return
    atoms = motion.positions, motion.velocities, motion.done_positions, motion.inverse_mass
    systems = motion.system_ptr, motion.descent, motion.progress
    constants = [float(value) for value in descent]
    run(_descend, len(motion.cell), *atoms, forces, *systems, tuple(constants))
    motion.clock.add_(1)
    motion.oldest.clamp_(min=int(totals[:, -1].max()))


@exact_inlined
def _sums(velocities, forces, inverse_mass, first, last):
    """Return sums of F v, v v and F F, and the largest force squared; fixed atoms feel none."""
    power = speed = slope = largest = 0.0
    for i in range(first, last):
        u, v, w = velocities[i, 0], velocities[i, 1], velocities[i, 2]
        speed += u * u + v * v + w * w
        if inverse_mass[i] > 0:
            x, y, z = forces[i, 0], forces[i, 1], forces[i, 2]
            power += x * u + y * v + z * w
            squared = x * x + y * y + z * z
            slope += squared
            largest = max(largest, squared)
    return power, speed, slope, math.sqrt(largest)


@exact_inlined
def _decide(state, s, sums, descent):
    """Decide how a system moves; ``state`` [B, 6] is `Motion.descent`."""
    max_force, _, _, shortest, longest, growth, cut, delay, mixing0, decay = descent
    power, speed, slope, largest = sums
    timestep, mixing, count = state[s, 0], state[s, 1], state[s, 2]
    if power > 0:
        count += 1
        if count > delay:
            timestep = min(timestep * growth, longest)
            mixing *= decay
    else:
        count, mixing = 0.0, mixing0
        if speed > 0:
            timestep = max(timestep * cut, shortest)
    squared = timestep * timestep * slope
    if power > 0:
        squared += speed + 2 * timestep * power
    turn = math.sqrt(squared / (slope if slope > 0 else 1.0))
    moves = 0.0 if largest < max_force else 1.0
    state[s, 0], state[s, 1], state[s, 2] = timestep, mixing, count
    state[s, 3] = 0.0 if power > 0 else -0.5 * timestep * moves
    state[s, 4] = (1 - mixing) * moves if power > 0 else 0.0
    state[s, 5] = ((1 - mixing) * timestep + mixing * turn) * moves


@exact_loop
def _descend(
    positions, velocities, done_positions, inverse_mass, forces, system_ptr, state, progress,
    descent, first, last,
):  # fmt: skip
    max_force, max_move = descent[0], descent[1]
    for s in range(first, last):
        begin, end = system_ptr[s], system_ptr[s + 1]
        sums = _sums(velocities, forces, inverse_mass, begin, end)
        _decide(state, s, sums, descent)
        progress[s, 0] += 0.0 if sums[3] < max_force else 1.0
        progress[s, 1] = sums[3]
        timestep, back, keep, push = state[s, 0], state[s, 3], state[s, 4], state[s, 5]
        for i in range(begin, end):
            force = push if inverse_mass[i] > 0 else 0.0
            u = keep * velocities[i, 0] + force * forces[i, 0]
            v = keep * velocities[i, 1] + force * forces[i, 1]
            w = keep * velocities[i, 2] + force * forces[i, 2]
            x = back * velocities[i, 0] + timestep * u
            y = back * velocities[i, 1] + timestep * v
            z = back * velocities[i, 2] + timestep * w
            share = max_move / max(math.sqrt(x * x + y * y + z * z), max_move)
            for axis in range(3):
                done_positions[i, axis] = positions[i, axis]
            positions[i, 0] += share * x
            positions[i, 1] += share * y
            positions[i, 2] += share * z
            velocities[i, 0], velocities[i, 1], velocities[i, 2] = share * u, share * v, share * w
