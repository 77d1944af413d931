"""Minimization by FIRE 2.0, see `mlff_triton.kernels.dynamics.descent`."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.reference.integrator import can_finish, system_of_atoms
from mlff_triton.kernels.types.motion import Descent, Motion


def descend(motion: Motion, forces: Tensor, totals: Tensor, descent: Descent) -> None:
    """Take a step of a minimization if its forces are valid, in place.

    Arguments are those of `mlff_triton.kernels.dynamics.descent.descend`.
    """
    if not can_finish(motion, totals):
        return
    system = system_of_atoms(motion)
    forces = torch.where(motion.inverse_mass[:, None] > 0, forces, 0.0)
    _decide(motion, forces, system, descent)
    timestep, back, keep, push = motion.descent[system][:, [0, 3, 4, 5], None].unbind(1)
    velocity = keep * motion.velocities + push * forces
    move = back * motion.velocities + timestep * velocity
    share = descent.max_move / move.norm(dim=1, keepdim=True).clamp(min=descent.max_move)
    motion.done_positions.copy_(motion.positions)
    motion.positions.add_(share * move)
    motion.velocities.copy_(share * velocity)
    motion.clock.add_(1)
    motion.oldest.clamp_(min=int(totals[:, -1].max()))


def _decide(motion: Motion, forces: Tensor, system: Tensor, descent: Descent) -> None:
    """Decide how each system moves."""
    zero = torch.zeros_like(motion.work)

    def sums(a: Tensor, b: Tensor) -> Tensor:
        return zero.index_add(0, system, (a * b).sum(1))

    velocity = motion.velocities
    power, speed = sums(forces, velocity), sums(velocity, velocity)
    slope = sums(forces, forces)
    largest = zero.scatter_reduce(0, system, forces.square().sum(1), "amax").sqrt()
    timestep, mixing, count = motion.descent[:, :3].unbind(1)
    downhill = power > 0
    count = torch.where(downhill, count + 1, 0.0)
    grows = count > descent.delay
    longer = (timestep * descent.growth).clamp(max=descent.longest)
    shorter = (timestep * descent.cut).clamp(min=descent.shortest)
    shorter = torch.where(speed > 0, shorter, timestep)
    timestep = torch.where(downhill, torch.where(grows, longer, timestep), shorter)
    mixing = torch.where(downhill, mixing, descent.mixing)
    mixing = torch.where(grows, mixing * descent.decay, mixing)
    squared = downhill * (speed + 2 * timestep * power) + timestep.square() * slope
    turn = (squared / torch.where(slope > 0, slope, 1.0)).sqrt()
    push = (1 - mixing) * timestep + mixing * turn
    done = largest < descent.max_force
    factors = -0.5 * timestep * ~downhill, (1 - mixing) * downhill, push
    decided = [torch.where(done, 0.0, factor) for factor in factors]
    motion.descent.copy_(torch.stack([timestep, mixing, count, *decided], 1))
    motion.progress[:, 0].add_((~done).double())
    motion.progress[:, 1].copy_(largest)
