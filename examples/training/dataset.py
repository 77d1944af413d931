"""The shards of `make_data.py` as one large graph in memory, and batches taken from it."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mlff_triton import Graph, neighbor_list
from mlff_triton.neighbors.graph import concatenate
from mlff_triton.training.batches import LISTED, Size, take
from mlff_triton.training.padding import pad_batch, pad_graph

TRAIN, VALIDATION = 0, 1  # indices of splits

Batch = dict[str, Tensor]
"""Configurations that the model evaluates together, and the neighbor list of their atoms.

The keys are those of `mlff_triton.training.padding.pad_batch` with the masks, ``energy`` in eV,
``forces`` in eV/Å, and those of `LISTED`.
"""


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
        sizes = (start.diff()[configs] for start in (self.atom_start, self.edge_start))
        return Size.of_most(*sizes, count)

    def batch(self, configs: Tensor, room: Size | None = None) -> Batch:
        """Take some configurations, with their atoms and edges renumbered.

        The batch is padded to the given size, if there is one and it is large enough.
        """
        atoms, system, graph = take(self.graph, self.atom_start, self.edge_start, configs)
        batch = {
            "z": self.numbers[atoms],
            "pos": self.positions[atoms],
            "batch": system,
            "energy": self.energy[configs],
            "forces": self.forces[atoms],
        }
        size = Size(len(atoms), len(configs), graph.n_edges)
        if room is not None and size.fits(room):
            size = room
        padded = pad_batch(batch, size.atoms, size.structures)
        graph = pad_graph(graph, size.atoms, size.edges)
        return padded | {name: getattr(graph, name) for name in LISTED}


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
