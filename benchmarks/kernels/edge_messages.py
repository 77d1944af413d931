"""Messages of TensorNet2, from edges and the terms of charges.

Our kernel interpolates the first map of each edge's network, evaluates the other two on tensor
cores and sums the messages. PyTorch evaluates the basis and all maps, gathers, multiplies and
scatters. The weights are those of the first layer of a random TensorNet, whose first map gets
terms of both atoms. Distances are given to both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels import radial_messages
from benchmarks.systems.models import model
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork
from mlff_triton.model.irreps import PARTS
from mlff_triton.model.radial_basis import cosine_cutoff

if TYPE_CHECKING:
    from benchmarks.kernels.source import Inputs, Source

N_CHARGES = 16


def inputs(source: Source) -> Inputs:
    """Return tensors [9, N, F], terms [2, N, F] and positions, float64 [N, 3]."""
    y, positions = radial_messages.inputs(source)
    return y, source.random(2, *y.shape[1:]), positions


def eager(y: Tensor, terms: Tensor, positions: Tensor) -> Tensor:
    """Compute messages [9, N, F] in PyTorch, in the dtype of ``y``."""
    box = radial_messages._box(len(positions), y.device)
    network = radial_messages._network(y.device, y.dtype)
    graph, layer, config = box.graph, network.interactions[0], network.config
    atoms = torch.arange(len(positions), device=y.device)
    distances = torch.linalg.vector_norm(graph.vectors(positions, box.cell, None), dim=1)
    distances = torch.cat([distances.to(y.dtype), y.new_zeros(len(atoms))])
    i, j = torch.cat([graph.receivers, atoms]), torch.cat([graph.senders, atoms])
    first, second, third = layer.radial
    hidden = first(network.basis(distances)) + terms[0, i] + terms[1, j]
    hidden = functional.silu(third(functional.silu(second(functional.silu(hidden)))))
    cutoff = cosine_cutoff(distances[:, None], config.cutoff_lower, config.cutoff_upper)
    factors = (hidden * cutoff).unflatten(1, (3, -1)).unbind(1)
    messages = [
        torch.zeros_like(part).index_add(1, i, part.index_select(1, j) * factor)
        for part, factor in zip(y.split(PARTS), factors, strict=True)
    ]
    return torch.cat(messages)


def ours(y: Tensor, terms: Tensor, positions: Tensor) -> Tensor:
    """Compute the same messages with our kernel."""
    from mlff_triton.kernels.tensornet2.edge_messages import edge_messages
    from mlff_triton.kernels.tensornet2.edge_rows import edge_rows

    edges = _edges(len(positions), y.device).to(y.dtype)
    return edge_messages(y, terms, _weights(y.device, y.dtype), edges, edge_rows(edges))[0]


@lru_cache(maxsize=2)
def _edges(n_atoms: int, device: torch.device) -> Edges:
    box = radial_messages._box(n_atoms, device)
    positions = torch.from_numpy(box.system.positions).to(device)
    vectors = box.graph.vectors(positions, box.cell, None)
    knots = radial_messages._tables(device, torch.float32).knots
    lists = box.graph.row_ptr, box.graph.senders, box.graph.reverse
    return _in_matrix(Edges.of_graph(*lists, vectors, knots))


def _in_matrix(edges: Edges) -> Edges:
    """Move the edges of a graph to a neighbor matrix, as the engine keeps them."""
    count = edges.slot_end - edges.slot_begin
    capacity = int(count.max())
    begin = torch.arange(len(count), device=count.device, dtype=count.dtype) * capacity
    slots, receivers = edges.live()
    places = slots + (begin - edges.slot_begin)[receivers]

    def moved(values: Tensor) -> Tensor:
        out = values.new_zeros(*values.shape[:-1], len(count) * capacity)
        out[..., places] = values
        return out

    _, _, senders, _, reverse, *geometry = edges
    origin, reverse = moved(places.int()), moved(places[reverse.long()].int())
    fields = [moved(values) for values in geometry]
    return Edges(begin, begin + count, moved(senders), origin, reverse, *fields)


@lru_cache(maxsize=2)
def _weights(device: torch.device, dtype: torch.dtype) -> InteractionNetwork:
    network = radial_messages._network(device, torch.float64)
    first, second, third = network.interactions[0].radial
    knots = radial_messages._tables(device, torch.float32).knots.positions
    distance = knots.detach().clone().requires_grad_()
    value = first(network.basis(distance))
    weights = torch.ones_like(value, requires_grad=True)
    (gradient,) = torch.autograd.grad((weights * value).sum(), distance, create_graph=True)
    (slope,) = torch.autograd.grad(gradient.sum(), weights)
    value = value.detach()
    secant = torch.cat([value.diff(dim=0) / knots.diff()[:, None], value[:1] * 0])
    table = torch.stack([value, slope, secant], dim=1)
    own = first(network.basis(knots.new_zeros(1)))[0]
    charges = table.new_zeros(N_CHARGES, 2, table.shape[2])
    parts = [t.detach().to(dtype) for t in (table, own, charges)]
    maps = [tuple(t.to(dtype) for t in (layer.weight, layer.bias)) for layer in (second, third)]
    config = model("random").config
    cutoffs = config.cutoff_lower, config.cutoff_upper
    return InteractionNetwork.of(*parts, *maps, cutoffs, config.activation)
