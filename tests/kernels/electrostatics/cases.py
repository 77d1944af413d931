"""Random charges in periodic boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.types import Electrostatics, PMEParameters
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import random_crystal

ANY_ORDER = 1e-9
"""Tolerance of gradients that are summed in any order, as those of the reference on a GPU are,
which computes second derivatives there as well."""


@dataclass(frozen=True)
class Charged:
    """Charged systems: atoms, cells and a neighbor list; positions and cells are float64."""

    charges: Tensor
    positions: Tensor
    cell: Tensor
    batch: Tensor
    graph: Graph

    @property
    def atoms(self) -> tuple[Tensor, ...]:
        """Charges, positions, cells and the system of each atom."""
        return self.charges, self.positions, self.cell, self.batch

    @property
    def lists(self) -> tuple[Tensor, ...]:
        """Neighbor list of the operators."""
        return self.graph.row_ptr, self.graph.senders, self.graph.shifts

    def to(self, device: str, dtype: torch.dtype = torch.float64) -> Charged:
        """Move all tensors to a device; charges also to a dtype."""
        charges, *others = (t.to(device) for t in self.atoms)
        return Charged(charges.to(dtype), *others, self.graph.to(device))


def charged(*structures: tuple[int, str], cutoff: float = 5.0, net: float = 0.0) -> Charged:
    """Return random crystals of these sizes and kinds, with random charges of up to one.

    Atoms lie in different images of the cell.
    """
    rng = np.random.default_rng(len(structures))
    crystals = [random_crystal(n, kind, seed=n) for n, kind in structures]
    graphs, charges, positions = [], [], []
    for atoms in crystals:
        cell = np.asarray(atoms.cell)
        points = atoms.positions + rng.integers(-2, 3, (len(atoms), 3)) @ cell
        graphs.append(neighbor_list(points, cutoff, cell, True))
        q = rng.uniform(-1, 1, len(atoms))
        charges.append(q - q.mean() + net / len(atoms))
        positions.append(points)
    sizes = torch.tensor([len(atoms) for atoms in crystals])
    return Charged(
        torch.from_numpy(np.concatenate(charges)),
        torch.from_numpy(np.concatenate(positions)),
        torch.from_numpy(np.stack([np.asarray(atoms.cell) for atoms in crystals])),
        torch.arange(len(crystals)).repeat_interleave(sizes),
        concatenate(graphs),
    )


def all_gradients(function: Any, charges: Tensor, positions: Tensor, cell: Tensor, *others: Any):
    """Return the result of a function, and the gradients of the energies by its first arguments.

    Each system has another weight.
    """
    leaves = [t.detach().clone().requires_grad_() for t in (charges, positions, cell)]
    found: Electrostatics = function(*leaves, *others)
    weights = torch.linspace(0.5, 1.5, len(cell), dtype=torch.float64, device=cell.device)
    return found, torch.autograd.grad((weights * found.energy).sum(), leaves)


MESH = PMEParameters(0.8, 5.0, (16, 12, 20), 5)
