"""Small batches of complexes for models of DiffDock, as torch_geometric collates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, HeteroData

from tests.bio.models.diffdock.neighbors import LIGAND_SIZES, RESIDUE_SIZES, radius_graph

SIGMAS = {"tr": (0.1, 19.0), "rot": (0.03, 1.55), "tor": (0.0314, 3.14)}


def to_sigma(*times: Tensor) -> tuple[Tensor, ...]:
    """Return noise levels of times."""
    ranges = zip(SIGMAS.values(), times, strict=True)
    return tuple(low ** (1 - t) * high**t for (low, high), t in ranges)


def make_complex(n_atoms: int, n_residues: int, away: float, width: int) -> HeteroData:
    """Return a chain of atoms at a distance in Å from residues; inner bonds are rotatable."""
    data = HeteroData()
    atoms, residues = data["ligand"], data["receptor"]
    atoms.x = torch.stack([torch.randint(size, (n_atoms,)) for size in LIGAND_SIZES], 1)
    steps = torch.nn.functional.normalize(torch.randn(n_atoms, 3, dtype=torch.float64), dim=1)
    atoms.pos = 1.5 * steps.cumsum(0) + torch.tensor([away, 0, 0])
    kinds = torch.randint(RESIDUE_SIZES[0], (n_residues, 1)).double()
    residues.x = torch.cat([kinds, torch.randn(n_residues, width, dtype=torch.float64)], 1)
    residues.pos = 8 * torch.randn(n_residues, 3, dtype=torch.float64)
    first = torch.arange(n_atoms - 1)
    pairs = torch.stack([first, first + 1], 1).flatten()
    back = torch.stack([first + 1, first], 1).flatten()
    bonds = data["ligand", "lig_bond", "ligand"]
    bonds.edge_index = torch.stack([pairs, back])
    bonds.edge_attr = torch.eye(4, dtype=torch.float64)[torch.randint(4, (len(pairs),))]
    is_inner = (pairs > 0) & (back < n_atoms - 1) & (pairs < back)
    atoms.edge_mask = is_inner
    contacts = data["receptor", "rec_contact", "receptor"]
    contacts.edge_index = radius_graph(residues.pos, 15.0, torch.zeros(n_residues).long(), 6)
    return data


def make_batch(
    sizes: Sequence[tuple[int, int]],
    away: float = 3.0,
    width: int = 0,
    dtype: torch.dtype = torch.float32,
    time: float = 0.4,
) -> Any:
    """Return complexes of atoms and residues at one time; with language features of a width."""
    torch.manual_seed(sum(map(sum, sizes)) + width)
    batch = Batch.from_data_list([make_complex(*size, away, width) for size in sizes])
    for store in batch.stores:
        for name, value in list(store.items()):
            if isinstance(value, Tensor) and value.is_floating_point():
                store[name] = value.to(dtype)
    for name in ("ligand", "receptor"):
        n_nodes = len(batch[name].pos)
        batch[name].node_t = {kind: torch.full((n_nodes,), time, dtype=dtype) for kind in SIGMAS}
    batch.complex_t = {kind: torch.full((len(sizes),), time, dtype=dtype) for kind in SIGMAS}
    return batch


def join(parts: Sequence[Any]) -> Any:
    """Return one batch of the complexes in several, at the time of the first."""
    complexes = [data for part in parts for data in part.to_data_list()]
    batch = Batch.from_data_list(complexes)
    for name in ("ligand", "receptor"):
        times = [part[name].node_t for part in parts]
        batch[name].node_t = {kind: torch.cat([t[kind] for t in times]) for kind in SIGMAS}
    batch.complex_t = {kind: torch.cat([p.complex_t[kind] for p in parts]) for kind in SIGMAS}
    return batch
