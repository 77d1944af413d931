"""First tensor of each atom, and its gradient along the edges, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet.tensor_embedding`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.radial_table import look_up, look_up_slope
from mlff_triton.kernels.common.reference.tensors import (
    PART_OF_COMPONENT,
    harmonics,
    part_norms,
    scale_parts,
    sum_at_receivers,
)
from mlff_triton.kernels.types.edges import Edges


def tensor_embedding(
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    """Compute the first tensors [9, M, F] of receivers, and their squared norms [M, F]."""
    slots, receivers = edges.live()
    pair = receiver[species[receivers]] + sender[species[edges.senders[slots]]]
    geometry = edges.interval[slots], edges.fraction[slots], edges.width[slots]
    factors = pair * look_up(table, *geometry)  # [3, E, F]
    components = harmonics(edges.direction[:, slots])[:, :, None]  # [9, E, 1]
    parts = zip(components, PART_OF_COMPONENT, strict=True)
    n_atoms = len(edges.slot_begin)
    x = torch.stack([sum_at_receivers(h * factors[k], receivers, n_atoms) for h, k in parts])
    x[0] += (receiver + sender)[species[:n_atoms]] * own
    return x, part_norms(x).sum(0)


def tensor_embedding_backward(
    grad: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    edges: Edges,
    slope: Tensor | None,
) -> Tensor:
    """Compute the gradient [3, slots] of the energy with respect to each edge vector."""
    slots, receivers = edges.live()
    pair = receiver[species[receivers]] + sender[species[edges.senders[slots]]]
    geometry = edges.interval[slots], edges.fraction[slots], edges.width[slots]
    u, origin = edges.direction[:, slots], edges.origin[slots].long()
    factors = pair * look_up(table, *geometry)
    slopes = pair * look_up_slope(table, *geometry)
    # Derivatives with respect to the harmonics, summed over channels: [9, E].
    g = grad[:, receivers]
    along = scale_parts(slopes, g).sum(2)
    across = scale_parts(factors, g).sum(2)
    radial = (along * harmonics(u)).sum(0)
    if slope is not None:
        radial = radial + slope[origin]
    x, y, z = u
    _, a0, a1, a2, s00, s01, s02, s11, s12 = across
    tangent = torch.stack(
        [
            a0 + 2 * s00 * x + s01 * y + s02 * z,
            a1 + s01 * x + 2 * s11 * y + s12 * z,
            a2 + s02 * x + s12 * y,
        ]
    )
    distance = edges.distance[slots]
    radial = radial - (tangent * u).sum(0) / distance
    edge_grad = torch.zeros_like(edges.direction)
    edge_grad[:, origin] = radial * u + tangent / distance
    return edge_grad
