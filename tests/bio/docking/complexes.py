"""Small complexes and models for docking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from mlff_triton.bio.docking.diffusion import Component, Diffusion
from tests.bio.models.diffdock import batches, support
from tests.bio.models.diffdock.batches import SIGMAS

SIZES = [(6, 9), (2, 7), (9, 8)]
"""Atoms and residues of complexes; the second ligand has no rotatable bond."""


def diffusion(steps: int = 3, temperature: float = 1.0, **options: Any) -> Diffusion:
    """Return a diffusion with the noise levels of the models."""
    made = [
        Component(*SIGMAS[kind], temperature, psi, data)
        for kind, psi, data in (("tr", 0.7, 0.9), ("rot", 0.9, 0.7), ("tor", 0.6, 0.6))
    ]
    return Diffusion(*made, steps, **options)


def make(n_atoms: int, n_residues: int, seed: int, width: int = 0, dtype: Any = None) -> Any:
    """Return a complex whose ligand is a chain that turns about its inner bonds."""
    torch.manual_seed(seed)
    data = batches.make_complex(n_atoms, n_residues, 3.0, width)
    for store in data.stores:
        for name, x in list(store.items()):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                store[name] = x.to(dtype or torch.float32)
    mask, bonds = data["ligand"].edge_mask, data["ligand", "ligand"].edge_index
    second = bonds[1, mask].numpy()
    data["ligand"].mask_rotate = np.arange(n_atoms) >= second[:, None]
    return data


def with_receptor(data: Any, other: Any) -> Any:
    """Give a complex the receptor of another one, without copying it."""
    for key in (("receptor",), ("receptor", "rec_contact", "receptor")):
        for name, x in other[key if len(key) > 1 else key[0]].items():
            data[key if len(key) > 1 else key[0]][name] = x
    return data


def make_model(kind: str, **options: Any) -> Any:
    """Return a structural double whose translations are small, so that ligands stay close."""
    model = support.make_model(kind, {"num_conv_layers": 2, "dynamic_max_cross": False} | options)
    model.cross_max_distance = 1e3
    if not model.confidence_mode:
        with torch.no_grad():
            for x in model.tr_final_layer[-1].parameters():
                x.mul_(0.02)
    return model


@cache
def kept_model(kind: str, confidence_mode: bool) -> Any:
    """Return a model that is made once, for code that sets its weights."""
    return make_model(kind, confidence_mode=confidence_mode)


def screen(sizes: Sequence[tuple[int, int]] = SIZES, **options: Any) -> list[Any]:
    """Return complexes, the last of which has the receptor of the first."""
    found = [make(*size, seed, **options) for seed, size in enumerate(sizes)]
    return [*found[:-1], with_receptor(found[-1], found[0])]


def set_time(data: Any, time: float) -> None:
    """Give a batch a time."""
    for name in ("ligand", "receptor"):
        data[name].node_t = {kind: torch.full((len(data[name].pos),), time) for kind in SIGMAS}
    data.complex_t = {kind: torch.full((data.num_graphs,), time) for kind in SIGMAS}


def add_atoms(data: Any) -> None:
    """Give each residue three atoms, with the feature of their residue, and contacts of atoms."""
    residues = data["receptor"]
    count = len(residues.pos)
    owners = torch.arange(count).repeat_interleave(3)
    data["atom"].pos = residues.pos[owners] + torch.randn(3 * count, 3)
    data["atom"].x = residues.x[owners, :1]
    near = torch.cdist(data["atom"].pos, data["atom"].pos).fill_diagonal_(9e9) < 4
    data["atom", "atom_contact", "atom"].edge_index = near.nonzero().T
    pairs = torch.stack([torch.arange(3 * count), owners])
    data["atom", "atom_rec_contact", "receptor"].edge_index = pairs
