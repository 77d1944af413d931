"""Coulomb energy of partial charges, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.coulomb`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import sum_at_receivers
from mlff_triton.kernels.types.charges import DAMPING, AtomOrder, ReactionField
from mlff_triton.kernels.types.edges import Edges

LARGEST_DECAY = 1 - 1 / 128


def coulomb_pairs(
    positions: Tensor, charges: Tensor, weights: Tensor, order: AtomOrder
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute energies [N], and the gradients of charges [N, C] and positions [N, 3]."""
    energies = charges.new_zeros(len(charges), dtype=torch.float64)
    grad_charges, grad_positions = torch.zeros_like(charges), torch.zeros_like(positions)
    for begin, end in order.system_ptr.unfold(0, 2, 1).tolist():
        rows = order.rank[begin:end].long()
        q = charges[rows].double()
        vectors = positions[begin:end, None] - positions[None, begin:end]
        alone = torch.eye(end - begin, dtype=torch.bool, device=q.device)
        distance = torch.linalg.vector_norm(vectors, dim=2).masked_fill(alone, 1.0)
        damping, slope = _damping(distance)
        factor = (damping / distance).masked_fill(alone, 0.0)
        slope = (slope / distance - factor / distance).masked_fill(alone, 0.0)
        potential = factor @ (q * weights)
        energies[rows] = (q * potential).sum(1)
        grad_charges[rows] = (2 * potential).to(charges.dtype)
        along = slope / distance * ((q * weights) @ q.T)
        grad_positions[begin:end] = 2 * (along[:, :, None] * vectors).sum(1)
    return energies, grad_charges, grad_positions


def coulomb_edges(
    charges: Tensor, weights: Tensor, edges: Edges, field: ReactionField
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute energies [N], and gradients of charges [N, C] and along the edges [3, slots]."""
    slots, receivers = edges.live()
    senders, distance = edges.senders[slots].long(), edges.distance[slots]
    damping, slope = _damping(distance)
    cutoff, quadratic, constant = field.constants.to(distance)
    inside = distance < cutoff
    bare = 1 / distance + quadratic * distance**2 - constant
    bare_slope = 2 * quadratic * distance - 1 / distance**2
    factor = damping * bare * inside
    slope = (slope * bare + damping * bare_slope) * inside
    potential = sum_at_receivers(
        factor[:, None] * charges[senders] * weights, receivers, len(charges)
    )
    energies = (charges * potential).sum(1).double()
    product = (charges[receivers] * charges[senders] * weights).sum(1)
    edge_grad = charges.new_zeros(3, len(edges.senders))
    edge_grad[:, edges.origin[slots].long()] = slope * product * edges.direction[:, slots]
    return energies, 2 * potential, edge_grad


def _damping(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``1 - exp(1 - 1 / (1 - (d / d0)^2))``, which is one beyond d0, and its derivative."""
    squared = (distance / DAMPING) ** 2
    rest = 1 - squared.clamp(max=LARGEST_DECAY)
    near = squared < LARGEST_DECAY
    decay = torch.exp(-squared.clamp(max=LARGEST_DECAY) / rest) * near
    value = -torch.expm1(-squared.clamp(max=LARGEST_DECAY) / rest)
    return torch.where(near, value, 1.0), decay * 2 * distance / (DAMPING * rest) ** 2
