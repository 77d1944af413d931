"""Scores of translation, rotation and torsions, and confidences, from encoded complexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.models.diffdock.complexes import (
    Graph,
    bond_graph,
    center_graph,
    function_of,
    spherical_harmonics,
    time_embedding,
)
from mlff_triton.bio.models.diffdock.convolution import Ends, Group, convolve
from mlff_triton.bio.models.diffdock.edges import mean_factors
from mlff_triton.bio.models.diffdock.network import Docking, Encoded


def confidences(docking: Docking, data: Any, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidences [B] or [B, outputs] of poses, and those of atoms, zero without a head."""
    model = docking.model
    n_layers = model.num_conv_layers + getattr(model, "num_prot_emb_layers", 0)
    scalars = atoms[:, : model.ns]
    if n_layers >= 3:
        n_odd = model.nv if getattr(model, "reduce_pseudoscalars", False) else model.ns
        scalars = torch.cat([scalars, atoms[:, -n_odd:]], 1)
    of_atoms = atoms.new_zeros(len(atoms))
    if getattr(model, "atom_confidence", False):
        scalars = model.atom_confidence_predictor(scalars)
        of_atoms, scalars = scalars.tensor_split([model.atom_num_confidence_outputs], 1)
    batch = data["ligand"].batch
    starts = torch.searchsorted(batch, torch.arange(data.num_graphs + 1, device=batch.device))
    means = torch.segment_reduce(scalars.contiguous(), "mean", offsets=starts, unsafe=True)
    return model.confidence_predictor(means).squeeze(dim=-1), of_atoms


class Unencoded(NamedTuple):
    """Inputs of scores that do not depend on encoded nodes.

    Attributes
    ----------
    bonds : int64 [2, T]
        Rotatable bonds.
    graph : Graph or None
        Edges from atoms to the middles of bonds, if there are bonds.
    norms : sequence of [B] or None
        Factors of the scores of rotations and torsions, for models that scale them.
    """

    bonds: Tensor
    graph: Graph | None
    norms: Sequence[Tensor] | None


def unencoded(model: Any, data: Any, sigmas: Sequence[Tensor]) -> Unencoded:
    """Return inputs of scores; the host waits for them unless they are kept with the data.

    If this comes before the layers, the layers are queued without any wait.
    """
    bonds = rotatable_bonds(model, data)
    graph = bond_graph(model, data, bonds) if bonds.shape[1] else None
    norms: Sequence[Tensor] | None = getattr(data, "score_norms", None)
    if norms is None and model.scale_by_sigma:
        norms = score_norms(model, sigmas[1], sigmas[2], data["ligand"].pos.device)
    return Unencoded(bonds, graph, norms)


def scores(
    docking: Docking, data: Any, encoded: Encoded, given: Unencoded, tr_sigma: Tensor
) -> tuple[Any, ...]:
    """Return scores of translations and rotations [B, 3] and of torsions [T].

    Side chains [M, 10], or None, follow for models that have the attribute.
    """
    model = docking.model
    tr_score, rot_score = _rigid_scores(docking, data, encoded.ligand)
    torsions = _torsion_scores(docking, data, encoded.ligand, given)
    if model.scale_by_sigma:
        assert given.norms is not None
        tr_score = tr_score / tr_sigma.unsqueeze(1)
        rot_score = rot_score * given.norms[0].unsqueeze(1)
        if len(torsions):
            torsions = torsions * given.norms[1][data["ligand"].batch[given.bonds[0]]]
    if not hasattr(model, "sidechain_pred"):
        return tr_score, rot_score, torsions
    chains = None
    if model.sidechain_pred:
        predicted = model.sidechain_predictor(encoded.receptor)
        chains = predicted[:, :10] + predicted[:, 10:]
    return tr_score, rot_score, torsions, chains


def _rigid_scores(docking: Docking, data: Any, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores [B, 3] of translations and rotations before they are scaled."""
    model = docking.model
    graph = center_graph(model, data)
    is_fixed = getattr(model, "fixed_center_conv", True)
    chosen = graph.edges.senders if is_fixed else graph.edges.receivers  # as in the original
    ends = ((atoms[:, : model.ns], chosen),)
    found = _final(docking, "final_conv", graph, graph.harmonics, atoms, ends)
    rigid = found[:, :6]
    if not getattr(model, "odd_parity", False):
        rigid = rigid + found[:, 6:]
    data.graph_sigma_emb = sigma = time_embedding(model, data.complex_t)
    scored = []
    for part, layer in zip(
        rigid.split(3, 1), (model.tr_final_layer, model.rot_final_layer), strict=True
    ):
        norm = torch.linalg.vector_norm(part, dim=1).unsqueeze(1)
        scored.append(part / norm * layer(torch.cat([norm, sigma], 1)))
    return scored[0], scored[1]


def rotatable_bonds(model: Any, data: Any) -> Tensor:
    """Return the rotatable bonds [2, T] of a batch, which may be kept with it."""
    ligand = data["ligand"]
    kept: Tensor | None = getattr(ligand, "rotatable_bonds", None)
    if kept is not None:
        return kept
    index: Tensor = data["ligand", "ligand"].edge_index
    return index[:, :0] if model.no_torsion else index[:, ligand.edge_mask].long()


def score_norms(
    model: Any, rot_sigma: Tensor, tor_sigma: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return factors [B] of the scores of rotations and torsions, from tables of the package."""
    of_rotations = function_of(model, "so3").score_norm(rot_sigma.cpu())
    of_torsions = function_of(model, "torus").score_norm(tor_sigma.cpu().numpy())
    return of_rotations.to(device), torch.as_tensor(of_torsions).float().sqrt().to(device)


def _torsion_scores(docking: Docking, data: Any, atoms: Tensor, given: Unencoded) -> Tensor:
    """Return scores [T] of torsions before they are scaled; empty if no bond is rotatable."""
    model, ligand, bonds, graph = docking.model, data["ligand"], given.bonds, given.graph
    if graph is None:
        return torch.empty(0, device=model.device)
    assert docking.bond_product is not None
    edges = graph.edges
    directions = spherical_harmonics(ligand.pos[bonds[1]] - ligand.pos[bonds[0]], 2)[:, 4:]
    pairs = graph.harmonics[:, :, None] * directions[edges.receivers][:, None, :]
    harmonics = pairs.flatten(1) @ docking.bond_product.flatten(0, 1)
    of_bonds = (atoms[bonds[0]] + atoms[bonds[1]])[:, : model.ns]
    ends = ((atoms[:, : model.ns], edges.senders), (of_bonds, edges.receivers))
    found = _final(docking, "tor_bond_conv", graph, harmonics, atoms, ends)
    torsions: Tensor = model.tor_final_layer(found).squeeze(1)
    return torsions


def _final(
    docking: Docking, name: str, graph: Graph, harmonics: Tensor, atoms: Tensor, ends: Ends
) -> Tensor:
    """Return the mean over edges of a last layer; NaN if there are no edges at all."""
    (layer,) = docking.layers[name]
    (factor,) = mean_factors([graph.edges], harmonics.dtype)
    group = Group(graph.edges, harmonics * factor, atoms, graph.features, ends)
    found = layer.finish(convolve(docking.operators, layer, [group]), atoms)
    return found if graph.edges.size else torch.full_like(found, torch.nan)
