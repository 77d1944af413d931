"""Coulomb energy of partial charges, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.coulomb`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import sum_at_receivers
from mlff_triton.kernels.types.charges import (
    DAMPING,
    AtomOrder,
    CoulombSums,
    EwaldField,
    ReactionField,
)
from mlff_triton.kernels.types.edges import Edges

LARGEST_DECAY = 1 - 1 / 128


def coulomb_pairs(
    positions: Tensor, charges: Tensor, weights: Tensor, mean_weights: Tensor, order: AtomOrder
) -> CoulombSums:
    """Compute energies over all pairs, with gradients and sums over atoms."""
    n_atoms, rank = len(charges), order.rank.long()
    grad_charges = torch.zeros_like(charges)
    forces, atoms = torch.zeros_like(positions), positions.new_zeros(7, n_atoms)
    for begin, end in order.system_ptr.unfold(0, 2, 1).tolist():
        rows = rank[begin:end]
        q = charges[rows].double()
        vectors = positions[begin:end, None] - positions[None, begin:end]
        alone = torch.eye(end - begin, dtype=torch.bool, device=q.device)
        distance = torch.linalg.vector_norm(vectors, dim=2).masked_fill(alone, 1.0)
        damping, slope = _damping(distance)
        factor = (damping / distance).masked_fill(alone, 0.0)
        slope = (slope / distance - factor / distance).masked_fill(alone, 0.0)
        potential = factor @ (q * weights)
        grad_charges[rows] = (2 * potential).to(charges.dtype)
        along = slope / distance * ((q * weights) @ q.T)
        grad = 2 * (along[:, :, None] * vectors).sum(1)
        forces[begin:end] = -grad
        atoms[0, begin:end] = (q * potential).sum(1)
        from_first = positions[begin:end] - positions[begin : begin + 1]
        atoms[1:, begin:end] = _virials(from_first, grad)
    mean, own = (charges * mean_weights).sum(1)[rank], order.computed
    return CoulombSums(grad_charges[own], mean[own], forces[own], atoms[:, own])


def coulomb_edges(
    charges: Tensor,
    weights: Tensor,
    mean_weights: Tensor,
    edges: Edges,
    field: ReactionField | EwaldField,
    order: Tensor,
) -> CoulombSums:
    """Compute energies over edges, with gradients and sums over atoms."""
    slots, receivers = edges.live()
    senders, distance = edges.senders[slots].long(), edges.distance[slots]
    inside = distance < field.constants[0].to(distance)
    factor, slope = (value * inside for value in _field(distance, field))
    n_atoms, user = len(edges.slot_begin), order[: len(edges.slot_begin)].long()
    potential = sum_at_receivers(factor[:, None] * charges[senders] * weights, receivers, n_atoms)
    product = (charges[receivers] * charges[senders] * weights).sum(1)
    direction = edges.direction[:, slots].T
    grad = (slope * product)[:, None] * direction
    virials = _virials(direction * distance[:, None], grad).T.contiguous()
    charges = charges[:n_atoms]
    mean = charges.new_zeros(len(order))
    forces = charges.new_zeros(len(order), 3, dtype=torch.float64)
    atoms = forces.new_zeros(7, len(order))
    mean[user] = (charges * mean_weights).sum(1)
    forces[user] = -2 * sum_at_receivers(grad.double(), receivers, n_atoms)
    atoms[0, user] = (charges * potential).sum(1).double()
    atoms[1:, user] = sum_at_receivers(virials.double(), receivers, n_atoms).T
    return CoulombSums(2 * potential, mean, forces, atoms)


def _virials(vectors: Tensor, grad: Tensor) -> Tensor:
    """Return the symmetric products [6, E] of vectors [E, 3] and gradients along them."""
    (x, y, z), (gx, gy, gz) = vectors.unbind(1), grad.unbind(1)
    shear = [(y * gz + z * gy) / 2, (x * gz + z * gx) / 2, (x * gy + y * gx) / 2]
    return torch.stack([x * gx, y * gy, z * gz, *shear])


def _field(distance: Tensor, field: ReactionField | EwaldField) -> tuple[Tensor, Tensor]:
    """Return the energy of unit charges at these distances, and its derivative."""
    damping, slope = _damping(distance)
    if isinstance(field, EwaldField):
        x = field.constants[1].to(distance) * distance
        energy = (torch.erfc(x) - (1 - damping)) / distance
        decay = 2 / math.sqrt(math.pi) * x * torch.exp(-(x**2))
        return energy, (slope - decay / distance - energy) / distance
    _, quadratic, constant = field.constants.to(distance)
    bare = 1 / distance + quadratic * distance**2 - constant
    bare_slope = 2 * quadratic * distance - 1 / distance**2
    return damping * bare, slope * bare + damping * bare_slope


def _damping(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``1 - exp(1 - 1 / (1 - (d / d0)^2))``, which is one beyond d0, and its derivative."""
    squared = (distance / DAMPING) ** 2
    rest = 1 - squared.clamp(max=LARGEST_DECAY)
    near = squared < LARGEST_DECAY
    decay = torch.exp(-squared.clamp(max=LARGEST_DECAY) / rest) * near
    value = -torch.expm1(-squared.clamp(max=LARGEST_DECAY) / rest)
    return torch.where(near, value, 1.0), decay * 2 * distance / (DAMPING * rest) ** 2
