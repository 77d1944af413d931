"""The fused operator from positions and a neighbor list to messages.

Our first kernel computes the distance of every edge, its cutoff function and its position in the
radial table; our second interpolates factors and sums messages. PyTorch computes distances, basis,
radial network and cutoff function, gathers, multiplies and scatters. Neither builds the list, and
both are for inference only.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.systems.models import model
from benchmarks.systems.systems import System, random_box
from mlff_triton.engine.radial_tables import TOLERANCES, RadialTables, radial_functions, tabulate
from mlff_triton.model.irreps import PARTS
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.graph import Graph

if TYPE_CHECKING:
    from benchmarks.kernels.source import Inputs, Source

SKIN = 0.5  # Å; our lists serve several steps, so they hold more than the edges
CAPACITY = 128  # slots per atom
BIN = 3.5  # Å; atoms are sorted by cell of this size, as the engine sorts them


@dataclass(frozen=True)
class Box:
    """A system and its neighbors, as either implementation needs them.

    Attributes
    ----------
    system : System
        The atoms, sorted in space.
    cell : float64 [1, 3, 3]
        Lattice vectors in Å.
    graph : Graph
        Edges within the cutoff, for PyTorch.
    neighbors : NeighborMatrix
        Neighbors within cutoff and skin, for our kernels.
    """

    system: System
    cell: Tensor
    graph: Graph
    neighbors: Any


@lru_cache(maxsize=2)
def _box(n_atoms: int, device: torch.device) -> Box:
    system = random_box(n_atoms)
    order = np.lexsort((system.positions // BIN).T)
    system = System(system.numbers[order], system.positions[order], system.cell, system.batch)
    cutoff = model("random").cutoff
    wide = system.graph(cutoff + SKIN).to(device)
    cell = torch.eye(3).double()[None] if system.cells is None else torch.from_numpy(system.cells)
    positions, cell = torch.from_numpy(system.positions).to(device), cell.to(device)
    rows = neighbor_matrix(wide, positions, cell)
    return Box(system, cell, system.graph(cutoff).to(device), rows)


def neighbor_matrix(graph: Graph, positions: Tensor, cell: Tensor, capacity: int = CAPACITY) -> Any:
    """Convert a graph to a padded neighbor matrix; atoms keep their order."""
    from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix, pack_shifts

    device, n_atoms = graph.senders.device, graph.n_atoms
    count = graph.row_ptr.diff()
    needed = int(count.max())
    if needed > capacity:
        raise ValueError(f"an atom has {needed} neighbors: raise the capacity of {capacity}")
    atoms = torch.arange(n_atoms, device=device)
    edges = torch.arange(graph.n_edges, device=device)
    slot = graph.receivers * capacity + edges - graph.row_ptr[graph.receivers]
    senders = atoms[:, None].repeat(1, capacity)
    senders.view(-1)[slot] = graph.senders
    shifts = pack_shifts(torch.zeros(n_atoms, capacity, 3, dtype=torch.int64, device=device))
    shifts.view(-1)[slot] = pack_shifts(graph.shifts)
    reverse = torch.arange(n_atoms * capacity, device=device)
    reverse[slot] = slot[graph.reverse]
    identity, begin = atoms.int(), atoms.int() * capacity
    largest = (count.max().int(), graph.shifts.abs().max().int())
    return NeighborMatrix(
        *(identity, identity, begin, count.int()),
        *(senders.int(), shifts, reverse.int(), *largest),
        positions=positions,
        inverse=torch.linalg.inv(cell).contiguous(),
    )


@lru_cache(maxsize=1)
def _tables(device: torch.device, dtype: torch.dtype) -> RadialTables:
    exact = copy.deepcopy(model("random")).double()
    return tabulate(exact, TOLERANCES[dtype]).to(device, dtype)


@lru_cache(maxsize=2)
def _network(device: torch.device, dtype: torch.dtype) -> TensorNet:
    return copy.deepcopy(model("random")).to(device, dtype).requires_grad_(False)


def inputs(source: Source) -> Inputs:
    """Return tensors [9, N, F] and positions, float64 [N, 3]."""
    box = _box(source.n_atoms, source.device)
    channels = model("random").config.hidden_channels
    y = source.random(9, source.n_atoms, channels)
    return y, torch.from_numpy(box.system.positions).to(source.device)


def eager(y: Tensor, positions: Tensor) -> Tensor:
    """Compute messages [9, N, F] of the first layer in PyTorch, in the dtype of ``y``."""
    box, network = _box(len(positions), y.device), _network(y.device, y.dtype)
    graph = box.graph
    distances = torch.linalg.vector_norm(graph.vectors(positions, box.cell, None), dim=1)
    factors = radial_functions(network)[1](distances.to(y.dtype)).unflatten(1, (3, -1))
    zero = distances.new_zeros(1, dtype=y.dtype)
    self_factors = radial_functions(network)[1](zero).unflatten(1, (3, -1))
    messages = []
    parts = zip(y.split(PARTS), factors.unbind(1), self_factors.unbind(1), strict=True)
    for part, factor, self_factor in parts:
        sent = part.index_select(1, graph.senders) * factor
        messages.append((part * self_factor).index_add(1, graph.receivers, sent))
    return torch.cat(messages)


def ours(y: Tensor, positions: Tensor) -> Tensor:
    """Compute the same messages with our kernels."""
    from mlff_triton.kernels.neighbors.edges import edges
    from mlff_triton.kernels.tensornet.message_product import message_product

    box, tables = _box(len(positions), y.device), _tables(y.device, y.dtype)
    system = _one_system(len(positions), y.device)
    cutoff = model("random").cutoff
    radii = cutoff, cutoff + SKIN
    found, _ = edges(positions, box.cell, system, box.neighbors, tables.knots, *radii, y.dtype)
    factors = tables.layers[0], tables.layer_self[0]
    message, _ = message_product(y, *factors, found, _neutral(y), "none")
    return message


@lru_cache(maxsize=2)
def _one_system(n_atoms: int, device: torch.device) -> Tensor:
    return torch.zeros(n_atoms, dtype=torch.int32, device=device)


def _neutral(y: Tensor) -> Tensor:
    """Return empty charge factors, which are not read because there is no product."""
    return y.new_empty(0)
