"""Stochastic rescaling of the cell, see `mlff_triton.kernels.dynamics.barostat`."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.dynamics.reference.integrator import (
    kinetic_energies,
    system_of_atoms,
    thermal_energy,
)
from mlff_triton.kernels.dynamics.reference.random import BAROSTAT, normals
from mlff_triton.kernels.dynamics.reference.rescaling import kinetic_tensors
from mlff_triton.kernels.types.motion import JUMP, SHARE, Barostat, Integration, Motion


def press(motion: Motion, totals: Tensor, integration: Integration, barostat: Barostat) -> None:
    """Stretch cells and pending atoms if the barostat is due after the last step that is done.

    Arguments are those of `mlff_triton.kernels.dynamics.barostat.press`.
    """
    step = int(motion.clock[0, 0])
    virial = totals[:, 1:10].unflatten(1, (3, 3))
    if motion.owed[0, 1] == step:
        _settle(motion, virial)
    if motion.pressed[0] >= step or step % barostat.every:
        return
    strain = _choose_strain(motion, virial, integration, barostat, step)
    grown, shrunk = torch.linalg.matrix_exp(strain), torch.linalg.matrix_exp(-strain)
    cell = motion.done_cell @ grown
    if not barostat.isotropic:
        turn = _axes(cell).mT @ _axes(motion.done_cell)
        grown, shrunk = grown @ turn, shrunk @ turn
        cell = (cell @ _axes(cell).mT).tril() @ _axes(motion.done_cell)
    jumps = ~(strain.square().sum((1, 2)) <= JUMP**2)
    motion.cell.copy_(torch.where(jumps[:, None, None], motion.cell, cell))
    grown[jumps, 0, 0] = torch.nan
    motion.strain.copy_(torch.stack([grown, shrunk], 1))
    motion.owed[:, 0] = 0.5 * (_symmetric(virial) * strain).sum((1, 2))
    motion.owed[:, 1] = step + 1
    _stretch(motion, grown, shrunk)
    motion.pressed.fill_(step)
    motion.stretched.fill_(step)


def _settle(motion: Motion, virial: Tensor) -> None:
    """Add the work owed for the last action."""
    grown, shrunk = motion.strain.unbind(1)
    strain = (grown.mT @ grown - shrunk.mT @ shrunk) / 4
    motion.work.add_(motion.owed[:, 0] + 0.5 * (_symmetric(virial) * strain).sum((1, 2)))
    motion.owed[:, 1] = -1


def _symmetric(virial: Tensor) -> Tensor:
    """Return symmetric matrices; only the upper triangles of the input are read."""
    return virial.triu() + virial.triu(1).mT


def _stretch(motion: Motion, grown: Tensor, shrunk: Tensor) -> None:
    """Stretch the pending state, and count the kinetic energy that this requires."""
    system = system_of_atoms(motion)
    motion.positions.copy_((motion.positions[:, None] @ grown[system])[:, 0])
    before = kinetic_energies(motion, motion.velocities)
    motion.velocities.copy_((motion.velocities[:, None] @ shrunk[system])[:, 0])
    motion.heat.add_(kinetic_energies(motion, motion.velocities) - before)


def _axes(cell: Tensor) -> Tensor:
    """Return unit vectors: along a, normal to it in the plane of a and b, and normal to both."""
    a, b, _ = cell.unbind(1)
    i = a / a.norm(dim=1, keepdim=True)
    b = b - (b * i).sum(1, keepdim=True) * i
    j = b / b.norm(dim=1, keepdim=True)
    return torch.stack([i, j, torch.linalg.cross(i, j)], 1)


def _choose_strain(
    motion: Motion, virial: Tensor, integration: Integration, barostat: Barostat, step: int
) -> Tensor:
    """Return the symmetric matrix M of each system, float64 [B, 3, 3]."""
    volume = torch.linalg.det(motion.done_cell).abs()
    kt, unit = thermal_energy(motion, step), torch.eye(3, dtype=torch.float64, device=volume.device)
    internal = (kinetic_tensors(motion) - virial) / volume[:, None, None]
    excess = internal - barostat.pressure * unit
    rate = barostat.rate(integration.timestep)
    rates = rate / (rate * motion.stiffness / SHARE).clamp(min=1.0)
    spread = ((1 - 0.5 * rates * motion.stiffness) * 2 * kt * rates / volume).sqrt()
    seed, stream, zero = integration.seed, motion.stream, torch.zeros_like(motion.stream)
    a, b, c, _ = normals(seed, step, BAROSTAT, zero, stream)
    if barostat.isotropic:
        mean = excess.diagonal(dim1=1, dim2=2).mean(1)
        strain: Tensor = ((rates * mean + spread * a) / 3)[:, None, None] * unit
        return strain
    f, g, h, _ = normals(seed, step, BAROSTAT, zero + 1, stream)
    noise = torch.stack([a, h / 2**0.5, g / 2**0.5, b, f / 2**0.5, c], 1)
    upper = torch.zeros_like(excess)
    rows, columns = torch.triu_indices(3, 3, device=volume.device)
    upper[:, rows, columns] = (rates / 3)[:, None] * excess[:, rows, columns]
    upper[:, rows, columns] += (spread / 3**0.5)[:, None] * noise
    return upper + upper.triu(1).mT
