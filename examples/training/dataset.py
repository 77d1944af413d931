"""The shards of `make_data.py` as one large graph in memory, and batches taken from it."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mlff_triton import Graph, neighbor_list
from mlff_triton.neighbors.graph import concatenate
from mlff_triton.training.padding import pad_batch, pad_graph

TRAIN, VALIDATION = 0, 1  # indices of splits
LISTED = ("row_ptr", "senders", "shifts", "reverse")  # tensors of a neighbor list
SIGMAS = 4  # standard deviations of the size of batches that the padded size covers

Batch = dict[str, Tensor]
"""Configurations that the model evaluates together, and the neighbor list of their atoms.

The keys are those of `mlff_triton.training.padding.pad_batch` with the masks, ``energy`` in eV,
``forces`` in eV/Å, and those of `LISTED`.
"""


@dataclass(frozen=True)
class Size:
    """Numbers of atoms, configurations and edges of a batch."""

    atoms: int
    configs: int
    edges: int


@dataclass(frozen=True)
class Dataset:
    """All configurations as one large graph, on the CPU.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers of all atoms.
    positions, forces : float32 [N, 3]
        Positions in Å and forces in eV/Å.
    energy : float64 [C]
        Energy of each configuration in eV.
    split, task : int64 [C]
        Split and sampling task of each configuration, as indices.
    atom_start, edge_start : int64 [C + 1]
        First atom and first edge of each configuration, with the totals at the end.
    graph : Graph
        Neighbors, with atoms and edges numbered across all configurations.
    task_names, split_names : list of str
        Names that ``task`` and ``split`` index.
    """

    numbers: Tensor
    positions: Tensor
    forces: Tensor
    energy: Tensor
    split: Tensor
    task: Tensor
    atom_start: Tensor
    edge_start: Tensor
    graph: Graph
    task_names: list[str]
    split_names: list[str]

    def select(self, split: int) -> Tensor:
        """Return the indices of the configurations of a split, int64."""
        return (self.split == split).nonzero()[:, 0]

    def room(self, configs: Tensor, count: int) -> Size:
        """Return a size that nearly all batches of ``count`` of the configurations fit in."""
        atoms, edges = (
            _room(start.diff()[configs].double(), count)
            for start in (self.atom_start, self.edge_start)
        )
        return Size(atoms + 2, count + 1, 2 * math.ceil(edges / 2))

    def batch(self, configs: Tensor, room: Size | None = None) -> Batch:
        """Take some configurations, with their atoms and edges renumbered.

        The batch is padded to the given size, if there is one and it is large enough.
        """
        atoms, system = ragged_range(self.atom_start, configs)
        edges, edge_system = ragged_range(self.edge_start, configs)
        first_atom, first_edge = starts(self.atom_start, configs), starts(self.edge_start, configs)
        atom_shift = (first_atom - self.atom_start[configs])[edge_system]
        edge_shift = (first_edge - self.edge_start[configs])[edge_system]
        counts = self.graph.row_ptr.diff()[atoms]
        graph = Graph(
            row_ptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            senders=self.graph.senders[edges] + atom_shift,
            shifts=self.graph.shifts[edges],
            reverse=self.graph.reverse[edges] + edge_shift,
        )
        batch = {
            "z": self.numbers[atoms],
            "pos": self.positions[atoms],
            "batch": system,
            "energy": self.energy[configs],
            "forces": self.forces[atoms],
        }
        size = Size(len(atoms), len(configs), len(edges))
        if room is not None and _fits(size, room):
            size = room
        padded = pad_batch(batch, size.atoms, size.configs)
        graph = pad_graph(graph, size.atoms, size.edges)
        return padded | {name: getattr(graph, name) for name in LISTED}


def _room(sizes: Tensor, count: int) -> int:
    """Return a bound of the sum of ``count`` sizes, which are drawn at random."""
    mean, spread = float(sizes.mean()), float(sizes.std(correction=0))
    return math.ceil(count * mean + SIGMAS * math.sqrt(count) * spread)


def _fits(size: Size, room: Size) -> bool:
    """Return True if a batch and the filler that it needs fit into a size."""
    atoms, configs = room.atoms - size.atoms, room.configs - size.configs
    return configs > 0 and atoms >= max(configs, 2) and size.edges <= room.edges


def load(folder: Path, cutoff: float) -> Dataset:
    """Read all shards and build all neighbor lists.

    Parameters
    ----------
    folder : path
        Folder of ``data_0.npz``, ``data_1.npz``, ...
    cutoff : float
        Cutoff of the neighbor list in Å.
    """
    shards = [np.load(path) for path in sorted(folder.glob("data_*.npz"))]
    if not shards:
        sys.exit(f"there is no data_*.npz in {folder}: create it with make_data.py")
    keys = ("n_atoms", "numbers", "positions", "energy", "forces", "split", "task")
    data = {key: np.concatenate([shard[key] for shard in shards]) for key in keys}
    bounds = np.concatenate([[0], data["n_atoms"].cumsum()])
    graphs = [neighbor_list(data["positions"][a:b], cutoff) for a, b in itertools.pairwise(bounds)]
    edges = np.concatenate([[0], np.cumsum([g.n_edges for g in graphs])])
    return Dataset(
        numbers=torch.tensor(data["numbers"].astype(np.int64)),
        positions=torch.tensor(data["positions"]),
        forces=torch.tensor(data["forces"]),
        energy=torch.tensor(data["energy"]),
        split=torch.tensor(data["split"].astype(np.int64)),
        task=torch.tensor(data["task"].astype(np.int64)),
        atom_start=torch.tensor(bounds),
        edge_start=torch.tensor(edges),
        graph=concatenate(graphs),
        task_names=[str(name) for name in shards[0]["task_names"]],
        split_names=[str(name) for name in shards[0]["split_names"]],
    )


def ragged_range(start: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate ``range(start[r], start[r + 1])`` over the rows.

    Parameters
    ----------
    start : int64 [R + 1]
        Boundaries of all rows.
    rows : int64 [B]
        Indices of the rows to take.

    Returns
    -------
    members, owner : int64
        The concatenated ranges, and the index in ``rows`` of each member.
    """
    lengths = start.diff()[rows]
    owner = torch.arange(len(rows), device=rows.device).repeat_interleave(lengths)
    offset = start[rows] - starts(start, rows)
    return torch.arange(len(owner), device=rows.device) + offset[owner], owner


def starts(start: Tensor, rows: Tensor) -> Tensor:
    """Return the start of each row after the rows are concatenated."""
    lengths = start.diff()[rows]
    return lengths.cumsum(0) - lengths
