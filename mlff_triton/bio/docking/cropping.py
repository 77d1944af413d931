"""Receptors without residues that are far from their ligands."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from mlff_triton.bio.docking.poses import Layout

CONTACTS = "receptor", "rec_contact", "receptor"
ATOM_CONTACTS = "atom", "atom_contact", "atom"
ATOM_RESIDUES = "atom", "atom_rec_contact", "receptor"


def cropped(data: Any, layout: Layout, cutoff: float) -> Any:
    """Return a batch without the residues farther than a cutoff in Å from their ligand.

    This is ``crop_beyond`` of DiffDock for a whole batch. It waits for the device once.
    """
    found = copy.copy(data)
    rows, receptor = layout.rows(data["ligand"].pos), found["receptor"]
    vectors = rows[receptor.batch] - receptor.pos[:, None]
    is_close = (vectors.square().sum(-1) < cutoff**2) & (layout.weights[receptor.batch, :, 0] > 0)
    kept = is_close.any(1)
    before = data[CONTACTS].edge_index
    _keep(receptor, kept, "pos", "x", "batch")
    found[CONTACTS].edge_index = _renumbered(before, kept, kept)
    if "atom" in data.node_types:
        owners = data[ATOM_RESIDUES].edge_index
        atoms = kept[owners[1]]
        _keep(found["atom"], atoms, "pos", "x", "batch")
        contacts = data[ATOM_CONTACTS].edge_index
        found[ATOM_CONTACTS].edge_index = _renumbered(contacts, atoms, atoms)
        found[ATOM_RESIDUES].edge_index = _renumbered(owners, atoms, kept)
    return found


def _keep(nodes: Any, kept: Tensor, *names: str) -> None:
    for name in names:
        nodes[name] = nodes[name][kept]


def _renumbered(index: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the edges between kept nodes, with the new numbers of these."""
    numbers = [kept.cumsum(0) - 1 for kept in (first, second)]
    index = index[:, first[index[0]] & second[index[1]]]
    return torch.stack([n[row] for n, row in zip(numbers, index, strict=True)])
