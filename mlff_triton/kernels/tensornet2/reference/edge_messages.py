"""Messages with factors from a network of distances and charges, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.edge_messages`. Weights must not
be halves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.activations import activate, activate_derivative
from mlff_triton.kernels.common.reference.radial_table import look_up, look_up_slope
from mlff_triton.kernels.common.reference.tensors import (
    PART_OF_COMPONENT,
    dot_parts,
    sum_at_receivers,
)
from mlff_triton.kernels.types.edge_rows import EdgeRows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork


class _Pairs(NamedTuple):
    """All edges with their geometry; those of atoms to themselves come first in each row.

    Attributes
    ----------
    atoms, neighbors : int64 [E + N]
        Owner of the row, ascending, and the other atom.
    slots : int64 [E + N]
        Slot of each edge; -1 for edges of atoms to themselves.
    radial, slope : [E + N, F]
        Tabulated part of the first map, and its derivative.
    cutoff, cutoff_slope : [E + N, 1]
        Cosine cutoff, and its derivative.
    """

    atoms: Tensor
    neighbors: Tensor
    slots: Tensor
    radial: Tensor
    slope: Tensor
    cutoff: Tensor
    cutoff_slope: Tensor


def edge_rows(edges: Edges) -> EdgeRows:
    """Count the edges of all atoms up to each one."""
    return EdgeRows((edges.slot_end - edges.slot_begin + 1).cumsum(0))


def edge_messages(
    y: Tensor, terms: Tensor, network: InteractionNetwork, edges: Edges, rows: EdgeRows
) -> tuple[Tensor, EdgeRows]:
    """Sum the messages to M receivers: [9, M, F]; nothing is kept for the backward pass."""
    pairs = _pairs(network, edges)
    receivers, senders = pairs.atoms, pairs.neighbors
    z1 = pairs.radial + terms[0, receivers] + terms[1, senders]
    *_, z3 = _hidden(z1, network)
    factors = activate(z3, network.activation) * pairs.cutoff
    return _sum_weighted(factors, y, senders, receivers, len(edges.slot_begin)), rows


def edge_messages_backward(
    grad: Tensor,
    y: Tensor,
    direct: Tensor,
    terms: Tensor,
    network: InteractionNetwork,
    edges: Edges,
    rows: EdgeRows,  # noqa: ARG001 (nothing is kept)
    slope: Tensor,
    accumulate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of tensors and terms of senders, and those of receivers' charges.

    If gradients of messages to all M atoms are given, results are those of the N atoms of the
    edges. If gradients of messages to these N atoms are given, results are those of all M.
    """
    pairs, n_atoms = _pairs(network, edges), len(edges.slot_begin)
    gathers = grad.shape[1] > n_atoms  # then atoms have the edges that they send
    receivers, senders = pairs.atoms, pairs.neighbors
    if gathers:
        receivers, senders = senders, receivers
    z1 = pairs.radial + terms[0, receivers] + terms[1, senders]
    z2, z3 = _hidden(z1, network)
    values = activate(z3, network.activation)

    grad_factors = dot_parts(grad[:, receivers], y[:, senders]).transpose(0, 1).flatten(1)
    grad_z3 = grad_factors * pairs.cutoff * activate_derivative(z3, network.activation)
    grad_z2 = grad_z3 @ network.third_adjoint.T * activate_derivative(z2, network.activation)
    grad_z1 = grad_z2 @ network.second_adjoint.T * activate_derivative(z1, network.activation)

    n_charges, is_edge = len(network.charges), pairs.slots >= 0
    found = (grad_factors * values * pairs.cutoff_slope).sum(1) + (grad_z1 * pairs.slope).sum(1)
    by_charge = (grad_z1 @ network.receiver)[:, :n_charges]
    origin = edges.origin[pairs.slots[is_edge]].long()
    out = origin if gathers else edges.reverse[origin].long()
    slope[out] = found[is_edge] + slope[out] if accumulate else found[is_edge]
    by_edge = grad.new_zeros(len(edges.senders), n_charges)
    by_edge[out] = by_charge[is_edge]

    sent, n_senders = senders.argsort(stable=True), n_atoms if gathers else y.shape[1]
    senders, receivers = senders[sent], receivers[sent]
    grad_sent = sum_at_receivers(grad_z1[sent], senders, n_senders)
    factors = (values * pairs.cutoff)[sent]
    grad_y = _sum_weighted(factors, grad, receivers, senders, n_senders)
    grad_y[:, : direct.shape[1]] += direct
    return grad_y, grad_sent, by_edge, by_charge[~is_edge]


def cosine_cutoff(distance: Tensor, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    """Return the cosine cutoff of distances, and its derivative."""
    if lower > 0:
        angle, sign = 2 * math.pi / (upper - lower), -0.5
        live = (distance > lower) & (distance < upper)
    else:
        angle, sign, live = math.pi / upper, 0.5, distance < upper
    value = 0.5 + sign * torch.cos(angle * (distance - max(lower, 0.0)))
    slope = -sign * angle * torch.sin(angle * (distance - max(lower, 0.0)))
    return value * live, slope * live


def _pairs(network: InteractionNetwork, edges: Edges) -> _Pairs:
    """Return the edges, and one more of each atom to itself."""
    slots, atoms = edges.live()
    n_atoms = len(edges.slot_begin)
    everyone = torch.arange(n_atoms, device=atoms.device)
    all_atoms = torch.cat([everyone, atoms])
    order = all_atoms.argsort(stable=True)

    table = network.table[:, :, None]  # one part
    where = edges.interval[slots], edges.fraction[slots], edges.width[slots]
    distance = edges.distance[slots]
    zeros = distance.new_zeros(n_atoms)
    own = network.own.expand(n_atoms, -1)
    cutoff = cosine_cutoff(torch.cat([zeros, distance]), *network.cutoffs.tolist())
    found = _Pairs(
        all_atoms,
        torch.cat([everyone, edges.senders[slots].long()]),
        torch.cat([torch.full_like(everyone, -1), slots]),
        torch.cat([own, look_up(table, *where)[0]]),
        torch.cat([torch.zeros_like(own), look_up_slope(table, *where)[0]]),
        *(value[:, None] for value in cutoff),
    )
    return _Pairs(*(field[order] for field in found))


def _hidden(z1: Tensor, network: InteractionNetwork) -> tuple[Tensor, Tensor]:
    """Return the second and the third hidden values, before their activation."""
    z2 = activate(z1, network.activation) @ network.second.T + network.second_bias
    return z2, activate(z2, network.activation) @ network.third.T + network.third_bias


def _sum_weighted(
    factors: Tensor, x: Tensor, neighbors: Tensor, atoms: Tensor, n_atoms: int
) -> Tensor:
    """Sum the tensors of neighbors, times the factors [E + N, 3 F] of their parts: [9, N, F]."""
    parts = factors.unflatten(1, (3, -1)).unbind(1)
    sums = [
        sum_at_receivers(parts[k] * component[neighbors], atoms, n_atoms)
        for component, k in zip(x, PART_OF_COMPONENT, strict=True)
    ]
    return torch.stack(sums)
