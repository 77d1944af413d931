"""The computation of DiffDock's score and confidence models, with the operators of a backend.

Two architectures: DiffDock-L (class CGModel) shares a layer between four groups of edges, and
embeds receptors once; the first release (CGOldModel, TensorProductScoreModel) has a layer for each
group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.models.diffdock.atoms import AtomTable, embed_atoms
from mlff_triton.bio.models.diffdock.complexes import (
    Graph,
    cross_graph,
    degree_of,
    edge_weights,
    ligand_graph,
    receptor_edges,
    spherical_harmonics,
    time_embedding,
    weighted_harmonics,
)
from mlff_triton.bio.models.diffdock.convolution import Group, convolve
from mlff_triton.bio.models.diffdock.edges import Edges, mean_factors
from mlff_triton.bio.models.diffdock.weights import Convolution, added
from mlff_triton.kernels.convolution.protocol import ConvolutionOperators


class Docking(NamedTuple):
    """A model for a backend.

    Attributes
    ----------
    model : torch.nn.Module
        Model, whose small networks of edges and complexes are called as they are.
    operators : ConvolutionOperators
        Operators of the backend.
    layers : dict of str to list of Convolution
        Convolutions by the names of their lists, or their own.
    ligand_atoms, residues : AtomTable
        Embeddings.
    signs : [S]
        Signs that harmonics get when edges are reversed.
    bond_product : [S, 5, T] or None
        Product of the harmonics of edges and of rotatable bonds, for torsions.
    """

    model: Any
    operators: ConvolutionOperators
    layers: dict[str, list[Convolution]]
    ligand_atoms: AtomTable
    residues: AtomTable
    signs: Tensor
    bond_product: Tensor | None


class Receptors(NamedTuple):
    """Receptors of a batch with one or more copies of each, all at one time.

    Attributes
    ----------
    data : torch_geometric.data.Batch
        Complexes with each receptor once.
    residues : int64 [M]
        Residue of ``data`` for each of the batch.
    contacts : int64 [E]
        Sorted contact of ``data`` for each sorted contact of the batch.
    """

    data: Any
    residues: Tensor
    contacts: Tensor


class Encoded(NamedTuple):
    """Nodes after all layers.

    Attributes
    ----------
    ligand : [N, columns]
        Atoms of ligands.
    receptor : [M, columns] or None
        Residues, if the last layer computes them.
    """

    ligand: Tensor
    receptor: Tensor | None


def cross_cutoff(model: Any, tr_sigma: Tensor) -> Any:
    """Return the cutoff in Å between ligands and receptors: a number, or [B, 1]."""
    if model.dynamic_max_cross:
        return (tr_sigma * 3 + 20).unsqueeze(1)
    return model.cross_max_distance


def encode_shared(docking: Docking, data: Any, cutoff: Any) -> Encoded:
    """Encode complexes with layers that all groups of edges share, as DiffDock-L does."""
    model, layers = docking.model, docking.layers
    receptor, residues = _embedded_receptor(docking, data)
    ligand, cross = _searched(model, data, cutoff)
    atoms = embed_atoms(model.lig_node_embedding, docking.ligand_atoms, _with_time(data["ligand"]))
    (means,) = _means(ligand)
    for layer in layers["lig_emb_layers"]:
        atoms = _alone(docking, layer, ligand, means, atoms)
    back = cross.reversed(len(residues), docking.signs)
    of_ligand, of_receptor = _means(ligand, cross), _means(receptor, back)
    last = len(layers["conv_layers"]) - 1
    for index, layer in enumerate(layers["conv_layers"]):
        groups = [
            _group(model, graph, h, *pair)
            for graph, h, pair in zip(
                (ligand, cross), of_ligand, ((atoms, atoms), (atoms, residues)), strict=True
            )
        ]
        any_edges = ligand.edges.size + cross.edges.size > 0
        if index < last:
            others = [
                _group(model, graph, h, *pair)
                for graph, h, pair in zip(
                    (receptor, back),
                    of_receptor,
                    ((residues, residues), (residues, atoms)),
                    strict=True,
                )
            ]
            any_edges = any_edges or receptor.edges.size > 0
            sums = convolve(docking.operators, layer, others, first=2)
        else:
            sums = residues.new_zeros(len(residues), layer.columns)
        residues = layer.finish(sums, residues, any_edges=any_edges)
        sums = convolve(docking.operators, layer, groups)
        atoms = layer.finish(sums, atoms, any_edges=any_edges)
    return Encoded(atoms, residues)


def encode_separate(docking: Docking, data: Any, cutoff: Any) -> Encoded:
    """Encode complexes with a layer for each group of edges, as the first release does."""
    model, layers = docking.model, docking.layers
    receptor, residues, messages = _receptor_in_time(docking, data)
    ligand, cross = _searched(model, data, cutoff)
    atoms = embed_atoms(model.lig_node_embedding, docking.ligand_atoms, _with_time(data["ligand"]))
    back = cross.reversed(len(residues))
    graphs = ligand, cross, receptor, back
    harmonics = [_means(graph)[0] for graph in graphs]
    names = (
        "lig_conv_layers",
        "rec_to_lig_conv_layers",
        "rec_conv_layers",
        "lig_to_rec_conv_layers",
    )
    n_layers = len(layers[names[0]])
    for index in range(n_layers):
        nodes = (atoms, atoms), (atoms, residues), (residues, residues), (residues, atoms)
        n_groups = 4 if index < n_layers - 1 else 2
        updates = []
        for at in range(n_groups):
            layer = layers[names[at]][index]
            if messages is not None and (at, index) == (2, 0):
                updates.append(messages)
                continue
            group = _group(model, graphs[at], harmonics[at], *nodes[at], senders_first=at == 3)
            updates.append(layer.finish(convolve(docking.operators, layer, [group]), nodes[at][0]))
        atoms = added(updates[0] + updates[1], atoms)
        if n_groups == 4:
            residues = added(updates[2] + updates[3], residues)
    return Encoded(atoms, None)


def _searched(model: Any, data: Any, cutoff: Any) -> tuple[Graph, Graph]:
    """Return the graphs whose edges must be found: within ligands, and with receptors.

    The host waits for the numbers of edges, so this comes before layers that need them.
    """
    ligand = ligand_graph(model, data)
    return ligand, cross_graph(model, data, cutoff)


def _with_time(nodes: Any) -> Tensor:
    return torch.cat([nodes.x, nodes.node_sigma_emb], 1)


def _means(*graphs: Graph) -> list[Tensor]:
    """Return harmonics by which sums over the edges of all graphs become means."""
    dtype = graphs[0].harmonics.dtype
    factors = mean_factors([graph.edges for graph in graphs], dtype)
    return [graph.harmonics * factor for graph, factor in zip(graphs, factors, strict=True)]


def _group(
    model: Any,
    graph: Graph,
    harmonics: Tensor,
    receivers: Tensor,
    senders: Tensor,
    *,
    senders_first: bool = False,
) -> Group:
    """Return the edges of a graph, whose network also reads the scalars of both nodes."""
    ends = (
        (receivers[:, : model.ns], graph.edges.receivers),
        (senders[:, : model.ns], graph.edges.senders),
    )
    return Group(
        graph.edges, harmonics, senders, graph.features, ends[::-1] if senders_first else ends
    )


def _alone(
    docking: Docking, layer: Convolution, graph: Graph, harmonics: Tensor, node: Tensor
) -> Tensor:
    """Return nodes after a layer over the edges of one graph."""
    group = _group(docking.model, graph, harmonics, node, node)
    sums = convolve(docking.operators, layer, [group])
    return layer.finish(sums, node, any_edges=graph.edges.size > 0)


def _embedded_receptor(docking: Docking, data: Any) -> tuple[Graph, Tensor]:
    """Return the graph of residues and their embeddings at the present time.

    As in the original, results that do not depend on the time are kept with the data.
    """
    model, receptor, contacts = docking.model, data["receptor"], data["receptor", "receptor"]
    edges = receptor_edges(data)
    if not hasattr(receptor, "rec_node_attr"):
        keep_receptor(docking, data, edges)
    sigma = model.rec_sigma_embedding(model.timestep_emb_func(data.complex_t["tr"]))
    residues = receptor.rec_node_attr + 0
    residues[:, : model.ns] += sigma[receptor.batch]
    features = contacts.rec_edge_attr[edges.order] + sigma[receptor.batch[edges.receivers]]
    harmonics = contacts.edge_sh
    if isinstance(contacts.edge_weight, Tensor):
        harmonics = harmonics * contacts.edge_weight
    return Graph(edges, harmonics[edges.order], features), residues


def keep_receptor(docking: Docking, data: Any, edges: Edges) -> None:
    """Compute what does not depend on the time, and keep it in the order of the data's edges."""
    model, receptor, contacts = docking.model, data["receptor"], data["receptor", "receptor"]
    vectors = receptor.pos[edges.senders] - receptor.pos[edges.receivers]
    distances = vectors.norm(dim=-1)
    features = model.rec_edge_embedding(model.rec_distance_expansion(distances))
    harmonics = spherical_harmonics(vectors, degree_of(model))
    weights = edge_weights(model, distances, model.rec_max_radius)
    graph = Graph(edges, harmonics if weights is None else harmonics * weights, features)
    residues = embed_atoms(model.rec_node_embedding, docking.residues, receptor.x)
    (means,) = _means(graph)
    for layer in docking.layers["rec_emb_layers"]:
        residues = _alone(docking, layer, graph, means, residues)
    before = torch.empty_like(edges.order)
    before[edges.order] = torch.arange(edges.size, device=before.device)
    receptor.rec_node_attr = residues
    contacts.rec_edge_attr, contacts.edge_sh = features[before], harmonics[before]
    contacts.edge_weight = 1.0 if weights is None else weights[before]


def _receptor_in_time(docking: Docking, data: Any) -> tuple[Graph, Tensor, Tensor | None]:
    """Return contacts, embedded residues, and what residues send each other in the first layer.

    The device computes these messages, None without such a layer, while the host queues the search
    of neighbors. They are computed once for all copies of a receptor. `node_sigma_emb` of the
    residues is set as usual.
    """
    model, receptor = docking.model, data["receptor"]
    receptor.node_sigma_emb = time_embedding(model, receptor.node_t)
    shared: Receptors | None = getattr(receptor, "shared", None)
    if shared is not None:
        alone = shared.data["receptor"]
        alone.node_sigma_emb = receptor.node_sigma_emb[:1].expand(len(alone.pos), -1)
    graph, residues = _embedded(docking, data if shared is None else shared.data)
    messages = None
    for layer in docking.layers["rec_conv_layers"][:1]:
        group = _group(model, graph, _means(graph)[0], residues, residues)
        messages = layer.finish(convolve(docking.operators, layer, [group]), residues)
    if shared is None:
        return graph, residues, messages
    rows, index = shared.contacts, shared.residues
    copies = Graph(receptor_edges(data), graph.harmonics[rows], graph.features[rows])
    return copies, residues[index], None if messages is None else messages[index]


def _embedded(docking: Docking, data: Any) -> tuple[Graph, Tensor]:
    """Return contacts and embedded residues at the times of the residues."""
    model, receptor = docking.model, data["receptor"]
    edges = receptor_edges(data)
    vectors = receptor.pos[edges.senders] - receptor.pos[edges.receivers]
    distances = vectors.norm(dim=-1)
    sigma = receptor.node_sigma_emb[edges.receivers]
    features = torch.cat([sigma, model.rec_distance_expansion(distances)], 1)
    harmonics = weighted_harmonics(model, vectors, distances, model.rec_max_radius)
    residues = embed_atoms(model.rec_node_embedding, docking.residues, _with_time(receptor))
    return Graph(edges, harmonics, model.rec_edge_embedding(features)), residues
