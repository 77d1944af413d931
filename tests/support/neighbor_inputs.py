"""Structures in all kinds of cells, as inputs of neighbor lists."""

from __future__ import annotations

import numpy as np
import torch

from mlff_triton.neighbors.box import Box
from mlff_triton.testing import random_cluster, random_crystal

KINDS = ("cluster", "cubic", "triclinic", "small", "slab", "rod")


def structure(kind: str, n_atoms: int, seed: int = 0):
    """Return positions, cell and periodicity of a structure."""
    if kind == "cluster":
        return random_cluster(n_atoms, seed=seed).positions, None, False
    atoms = random_crystal(n_atoms, kind, seed=seed)
    return atoms.positions, atoms.cell.array, atoms.pbc


def tensors(structures, device):
    """Return positions, cells, periodicity and batch of several structures, as for `build_rows`."""
    boxes = [Box.of(cell, pbc) for _, cell, pbc in structures]
    sizes = torch.tensor([len(positions) for positions, *_ in structures])
    return (
        torch.tensor(np.concatenate([positions for positions, *_ in structures]), device=device),
        torch.tensor(np.stack([box.cell for box in boxes]), device=device),
        torch.tensor(np.stack([box.pbc for box in boxes]), device=device),
        torch.arange(len(sizes)).repeat_interleave(sizes).to(device),
    )
