"""Graphs of protein-ligand complexes, with the features of their edges.

Neighbors are found by the functions that the model uses, in batches of torch_geometric.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.models.diffdock.edges import Edges

MAX_CROSS_NEIGHBORS = 10000
"""Neighbors of a ligand atom among residues, as in DiffDock."""


class Graph(NamedTuple):
    """Edges with features, in the order of receivers.

    Attributes
    ----------
    edges : Edges
        Edges.
    harmonics : [E, S]
        Spherical harmonics of edges, times their weights if these decrease with the distance.
    features : [E, ns]
        Embeddings of edges.
    """

    edges: Edges
    harmonics: Tensor
    features: Tensor

    def reversed(self, n_receivers: int, signs: Tensor | None = None) -> Graph:
        """Return the opposite edges, whose harmonics are multiplied with signs if given."""
        edges = self.edges.reversed(n_receivers)
        harmonics = self.harmonics if signs is None else self.harmonics * signs
        return Graph(edges, harmonics[edges.order], self.features[edges.order])


def function_of(model: nn.Module, name: str) -> Any:
    """Look up a name in the Python module that defines a model."""
    return type(model).forward.__globals__[name]


def spherical_harmonics(vectors: Tensor, degree: int) -> Tensor:
    """Return real harmonics [E, (degree + 1)^2] of directions, in e3nn's order and scale.

    The harmonics of one degree have the norm ``sqrt(2 l + 1)``. The degree is at most 2. Vectors of
    length zero have the direction zero.
    """
    direction = nn.functional.normalize(vectors, dim=-1)
    parts = [torch.ones_like(direction[:, :1])]
    if degree >= 1:
        parts.append(math.sqrt(3) * direction)
    if degree >= 2:
        xx, yy, zz = direction.square().split(1, -1)
        xz_xy_yz = math.sqrt(15) * direction * direction.roll(1, -1)
        parts += [
            xz_xy_yz[:, :2],
            math.sqrt(5) * (yy - 0.5 * (xx + zz)),
            xz_xy_yz[:, 2:],
            math.sqrt(3.75) * (zz - xx),
        ]
    return torch.cat(parts, -1)


def degree_of(model: Any) -> int:
    """Return the largest degree of the harmonics of a model's edges."""
    return len(model.sh_irreps) - 1


def signs_of_inversion(degree: int) -> Tensor:
    """Return the factors [S] of harmonics when their vectors are inverted, in float64."""
    signs = [(-1.0) ** l for l in range(degree + 1) for _ in range(2 * l + 1)]  # noqa: E741
    return torch.tensor(signs, dtype=torch.float64)


def time_embedding(model: Any, times: Any) -> Tensor:
    """Embed the times [N] of nodes or complexes, as the model's noise schedules ask for."""
    embed = model.timestep_emb_func
    if getattr(model, "separate_noise_schedule", False):
        return torch.cat([embed(times[kind]) for kind in ("tr", "rot", "tor")], 1)
    is_own = getattr(model, "asyncronous_noise_schedule", False)  # the package's spelling
    found: Tensor = embed(times["t" if is_own else "tr"])
    return found


def edge_weights(model: Any, distances: Tensor, cutoff: Any) -> Tensor | None:
    """Return weights [E, 1] of edges, which vanish at a cutoff in Å, if a model has them."""
    if not getattr(model, "smooth_edges", False):
        return None
    angles: Tensor = (distances * torch.pi / cutoff).clip(max=torch.pi)
    return (0.5 * (angles.cos() + 1.0))[:, None]


def weighted_harmonics(model: Any, vectors: Tensor, distances: Tensor, cutoff: Any) -> Tensor:
    """Return harmonics of edges, times their weights if a model has them."""
    harmonics = spherical_harmonics(vectors, degree_of(model))
    weights = edge_weights(model, distances, cutoff)
    return harmonics if weights is None else harmonics * weights


def ligand_graph(model: Any, data: Any) -> Graph:
    """Return bonds and close atoms of ligands, with `node_sigma_emb` of the atoms set as usual."""
    ligand, bonds = data["ligand"], data["ligand", "ligand"]
    ligand.node_sigma_emb = sigma = time_embedding(model, ligand.node_t)
    pos, n_atoms = ligand.pos, len(ligand.pos)
    close = function_of(model, "radius_graph")(pos, model.lig_max_radius, ligand.batch)
    index = torch.cat([bonds.edge_index, close], 1).long()
    edges = Edges.of(index[0], index[1], n_atoms, n_atoms)
    kinds = nn.functional.pad(bonds.edge_attr, (0, 0, 0, close.shape[1]))[edges.order]
    vectors = pos[edges.senders] - pos[edges.receivers]
    distances = vectors.norm(dim=-1)
    smeared = model.lig_distance_expansion(distances)
    features = torch.cat([kinds, sigma[edges.receivers], smeared], 1)
    harmonics = weighted_harmonics(model, vectors, distances, model.lig_max_radius)
    return Graph(edges, harmonics, model.lig_edge_embedding(features))


def cross_graph(model: Any, data: Any, cutoff: Any) -> Graph:
    """Return edges between ligand atoms, which receive, and residues within a cutoff in Å.

    The cutoff is a number, or a tensor [B, 1] of one for each complex.
    """
    ligand, receptor = data["ligand"], data["receptor"]
    radius, batches = function_of(model, "radius"), (receptor.batch, ligand.batch)
    positions, limit = (receptor.pos, ligand.pos), cutoff
    if isinstance(cutoff, Tensor):
        positions = receptor.pos / cutoff[receptor.batch], ligand.pos / cutoff[ligand.batch]
        limit = 1
    index = radius(*positions, limit, *batches, max_num_neighbors=MAX_CROSS_NEIGHBORS).long()
    edges = Edges.of(index[0], index[1], len(ligand.pos), len(receptor.pos))
    vectors = receptor.pos[edges.senders] - ligand.pos[edges.receivers]
    distances = vectors.norm(dim=-1)
    sigma = ligand.node_sigma_emb[edges.receivers]
    features = torch.cat([sigma, model.cross_distance_expansion(distances)], 1)
    if isinstance(cutoff, Tensor):
        cutoff = cutoff[ligand.batch[edges.receivers]].squeeze(1)
    harmonics = weighted_harmonics(model, vectors, distances, cutoff)
    return Graph(edges, harmonics, model.cross_edge_embedding(features))


def receptor_edges(data: Any) -> Edges:
    """Return the edges between residues, which are part of the data and may be kept with it."""
    contacts, n_residues = data["receptor", "receptor"], len(data["receptor"].pos)
    kept: tuple[Tensor, Edges] | None = getattr(contacts, "sorted_edges", None)
    if kept is not None and kept[0] is contacts.edge_index:
        return kept[1]
    index = contacts.edge_index.long()
    return Edges.of(index[0], index[1], n_residues, n_residues)


def keep_receptor_edges(data: Any) -> None:
    """Keep the edges between residues with the data; their tensor must not change afterwards."""
    contacts = data["receptor", "receptor"]
    contacts.sorted_edges = contacts.edge_index, receptor_edges(data)


def center_graph(model: Any, data: Any) -> Graph:
    """Return edges from all atoms of ligands to the centers of the ligands."""
    ligand, batch = data["ligand"], data["ligand"].batch
    atoms = torch.arange(len(batch), device=batch.device)
    edges = Edges.of(batch, atoms, data.num_graphs, len(batch))
    centers = torch.segment_reduce(
        ligand.pos.contiguous(), "mean", offsets=edges.row_ptr, unsafe=True
    )
    vectors = ligand.pos[edges.senders] - centers[edges.receivers]
    smeared = model.center_distance_expansion(vectors.norm(dim=-1))
    features = torch.cat([smeared, ligand.node_sigma_emb[edges.senders]], 1)
    harmonics = spherical_harmonics(vectors, degree_of(model))
    return Graph(edges, harmonics, model.center_edge_embedding(features))


def bond_graph(model: Any, data: Any, bonds: Tensor) -> Graph:
    """Return edges from atoms to the middles of rotatable bonds, int64 [2, T]."""
    ligand = data["ligand"]
    pos, batch = ligand.pos, ligand.batch
    middles = (pos[bonds[0]] + pos[bonds[1]]) / 2
    index = function_of(model, "radius")(
        pos, middles, model.lig_max_radius, batch_x=batch, batch_y=batch[bonds[0]]
    ).long()
    edges = Edges.of(index[0], index[1], bonds.shape[1], len(pos))
    vectors = pos[edges.senders] - middles[edges.receivers]
    distances = vectors.norm(dim=-1)
    features = model.final_edge_embedding(model.lig_distance_expansion(distances))
    harmonics = weighted_harmonics(model, vectors, distances, model.lig_max_radius)
    return Graph(edges, harmonics, features)
