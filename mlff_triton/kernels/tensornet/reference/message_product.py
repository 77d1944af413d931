"""Message passing with factors from a radial table, and tensor products, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet.message_product`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.radial_table import look_up, look_up_slope
from mlff_triton.kernels.common.reference.tensors import (
    PART_OF_COMPONENT,
    compose,
    decompose,
    inverse_norm,
    matmul,
    scale_parts,
    sum_at_receivers,
)
from mlff_triton.kernels.types.edges import Edges


def message_product(
    y: Tensor, table: Tensor, own: Tensor, edges: Edges, charge_factor: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """Compute messages [9, M, F], and their normalized product with the receiver's tensors."""
    n_receivers = len(edges.slot_begin)
    message = _sum_messages(y, table, edges)
    y, charge_factor = y[:, :n_receivers], charge_factor[:n_receivers]
    message = message + scale_parts(own[:, None, :], y)
    if group == "none":
        return message, message
    a, b = compose(y), compose(message)
    if group == "O(3)":
        product = charge_factor[:, None] * decompose(matmul(a, b) + matmul(b, a))
    else:
        product = 2 * decompose(matmul(a, b))
    return message, product * inverse_norm(product)


def message_backward(
    grad: Tensor,
    y: Tensor,
    direct: Tensor,
    table: Tensor,
    own: Tensor,
    edges: Edges,
    slope: Tensor,
    accumulate: bool,
) -> Tensor:
    """Compute the gradients [9, N, F] of the tensors sent; ``slope`` gets those of distances."""
    slots, receivers = _edges_from(grad.shape[1], edges)
    geometry = edges.interval[slots], edges.fraction[slots], edges.width[slots]
    slopes = look_up_slope(table, *geometry)  # [3, E, F]
    products = zip(grad, y, PART_OF_COMPONENT, strict=True)
    senders = edges.senders[slots].long()
    found = torch.zeros_like(geometry[1])
    for g, own_y, k in products:  # one component at a time, whose arrays fit into the cache
        found += (slopes[k] * g[senders] * own_y[receivers]).sum(1)
    origin = edges.origin[slots].long()
    slope[origin] = found + slope[origin] if accumulate else found
    out = _sum_messages(grad, table, edges)
    n_near = min(out.shape[1], grad.shape[1])
    near = out[:, :n_near]
    near += scale_parts(own[:, None, :], grad[:, :n_near])
    near += direct
    return out


def _edges_from(n_senders: int, edges: Edges) -> tuple[Tensor, Tensor]:
    """Return slots and receivers of the edges whose senders are among the first atoms."""
    slots, receivers = edges.live()
    near = edges.senders[slots] < n_senders
    return slots[near], receivers[near]


def _sum_messages(y: Tensor, table: Tensor, edges: Edges) -> Tensor:
    """Return the messages [9, M, F], without those from receivers to themselves."""
    slots, receivers = _edges_from(y.shape[1], edges)
    factors = look_up(table, edges.interval[slots], edges.fraction[slots], edges.width[slots])
    senders = edges.senders[slots].long()
    sums = [
        sum_at_receivers(factors[k] * component[senders], receivers, len(edges.slot_begin))
        for component, k in zip(y, PART_OF_COMPONENT, strict=True)
    ]
    return torch.stack(sums)
