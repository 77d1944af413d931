"""Structural doubles of DiffDock's coarse-grained models, with double layers.

They have the classes, attributes and arguments of the models, and the names of their parameters:
see `tests.bio.models.diffdock.layers`. Nodes of complexes are in one list, and edges as they come.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from e3nn import o3
from torch import Tensor, nn

from tests.bio.models.diffdock import layers as source
from tests.bio.models.diffdock.neighbors import (
    LIGAND_SIZES,
    RESIDUE_SIZES,
    radius,
    radius_graph,
    scatter_mean,
    so3,
    torus,
)

double = source.load("layers")

LANGUAGE = 1280


class Edges(NamedTuple):
    """Receivers and senders [2, E], harmonics [E, S], features [E, F] and weights [E, 1]."""

    index: Tensor
    sh: Tensor
    attr: Tensor
    weight: Any


def embed_time(times: Tensor) -> Tensor:
    """Return sines and cosines [N, 8] of times, of which all dtypes have the same.

    As angles are large, rounding them would hide all other errors.
    """
    frequencies = (torch.arange(4, device=times.device).double() * (-math.log(10000) / 3)).exp()
    angles = 10000 * times.float()[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1).to(times)


def pair(n_in: int, ns: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(n_in, ns), nn.ReLU(), nn.Dropout(0.1), nn.Linear(ns, ns))


class Docking(nn.Module):
    """Embeddings, graphs and heads of both architectures."""

    def __init__(
        self,
        t_to_sigma: Any,
        ns: int = 4,
        nv: int = 2,
        num_conv_layers: int = 3,
        sh_lmax: int = 2,
        use_second_order_repr: bool = False,
        confidence_mode: bool = False,
        language: bool = False,
        smooth_edges: bool = False,
        odd_parity: bool = False,
        fixed_center_conv: bool = True,
        no_torsion: bool = False,
        dynamic_max_cross: bool = True,
    ) -> None:
        super().__init__()
        self.t_to_sigma, self.timestep_emb_func, self.device = t_to_sigma, embed_time, "cpu"
        self.ns, self.nv, self.num_conv_layers = ns, nv, num_conv_layers
        self.sh_irreps = o3.Irreps.spherical_harmonics(sh_lmax)
        self.use_second_order_repr, self.confidence_mode = use_second_order_repr, confidence_mode
        self.smooth_edges, self.odd_parity, self.language = smooth_edges, odd_parity, language
        self.fixed_center_conv, self.no_torsion = fixed_center_conv, no_torsion
        self.dynamic_max_cross, self.scale_by_sigma = dynamic_max_cross, True
        self.separate_noise_schedule = self.asyncronous_noise_schedule = False
        self.include_miscellaneous_atoms = self.no_aminoacid_identities = False
        self.sigma_embed_dim, self.in_lig_edge_features = 8, 4
        self.lig_max_radius, self.rec_max_radius, self.cross_max_distance = 5.0, 30.0, 50.0
        self.lig_edge_embedding = pair(4 + 8 + 6, ns)
        self.cross_edge_embedding = pair(8 + 6, ns)
        for name, stop in (("lig", 5.0), ("rec", 30.0), ("cross", 50.0)):
            setattr(self, f"{name}_distance_expansion", double.GaussianSmearing(0.0, stop, 6))

    def make_heads(self, irreps: str, layer: Any, n_scalars: int) -> None:
        """Make the parts after the layers, whose nodes have some irreps."""
        ns = self.ns
        if self.confidence_mode:
            self.confidence_predictor = nn.Sequential(
                nn.Linear(n_scalars, ns), nn.BatchNorm1d(ns), nn.ReLU(), nn.Linear(ns, 1)
            )
            return
        self.center_distance_expansion = double.GaussianSmearing(0.0, 30.0, 6)
        self.center_edge_embedding = pair(6 + 8, ns)
        out = "1x1o + 1x1e" if self.odd_parity else "2x1o + 2x1e"
        self.final_conv = layer(irreps, self.sh_irreps, out, 2 * ns, residual=False)
        for name in ("tr", "rot"):
            parts = nn.Linear(1 + 8, ns), nn.Dropout(0.1), nn.ReLU(), nn.Linear(ns, 1)
            setattr(self, f"{name}_final_layer", nn.Sequential(*parts))
        if self.no_torsion:
            return
        self.final_edge_embedding = pair(6, ns)
        self.final_tp_tor = o3.FullTensorProduct(self.sh_irreps, "2e")
        out = f"{ns}x0o" if self.odd_parity else f"{ns}x0o + {ns}x0e"
        harmonics = self.final_tp_tor.irreps_out
        self.tor_bond_conv = layer(irreps, harmonics, out, 3 * ns, residual=False)
        first = nn.Linear(ns if self.odd_parity else 2 * ns, ns, bias=False)
        self.tor_final_layer = nn.Sequential(first, nn.Tanh(), nn.Linear(ns, 1, bias=False))

    def time(self, times: Any) -> Tensor:
        """Embed times of nodes or complexes."""
        kinds = ["t" if self.asyncronous_noise_schedule else "tr"]
        kinds = ["tr", "rot", "tor"] if self.separate_noise_schedule else kinds
        return torch.cat([self.timestep_emb_func(times[kind]) for kind in kinds], 1)

    def edges(self, index: Tensor, vectors: Tensor, name: str, cutoff: Any, *more: Tensor) -> Edges:
        """Return edges whose features are others, and Gaussians of the distances behind them."""
        distances = vectors.norm(dim=-1)
        sh = o3.spherical_harmonics(self.sh_irreps, vectors, True, "component")
        attr = torch.cat([*more, getattr(self, f"{name}_distance_expansion")(distances)], 1)
        weight: Any = 1.0
        if self.smooth_edges:
            weight = 0.5 * (1 + (distances * math.pi / cutoff).clip(max=math.pi).cos())[:, None]
        return Edges(index, sh, attr, weight)

    def ligand_edges(self, data: Any) -> Edges:
        """Return bonds and close atoms."""
        atoms, bonds = data["ligand"], data["ligand", "ligand"]
        atoms.node_sigma_emb = self.time(atoms.node_t)
        close = radius_graph(atoms.pos, self.lig_max_radius, atoms.batch)
        index = torch.cat([bonds.edge_index, close], 1)
        kinds = torch.cat([bonds.edge_attr, bonds.edge_attr.new_zeros(close.shape[1], 4)])
        vectors = atoms.pos[index[1]] - atoms.pos[index[0]]
        more = kinds, atoms.node_sigma_emb[index[0]]
        found = self.edges(index, vectors, "lig", self.lig_max_radius, *more)
        return found._replace(attr=self.lig_edge_embedding(found.attr))

    def cross_edges(self, data: Any, tr_sigma: Tensor) -> Edges:
        """Return edges from residues to atoms."""
        atoms, residues = data["ligand"], data["receptor"]
        cutoff = torch.full_like(tr_sigma, self.cross_max_distance)
        if self.dynamic_max_cross:
            cutoff = tr_sigma * 3 + 20
        scaled = [x.pos / cutoff[x.batch][:, None] for x in (residues, atoms)]
        index = radius(*scaled, 1, residues.batch, atoms.batch, max_num_neighbors=10000)
        vectors = residues.pos[index[1]] - atoms.pos[index[0]]
        at = cutoff[atoms.batch[index[0]]]
        found = self.edges(index, vectors, "cross", at, atoms.node_sigma_emb[index[0]])
        return found._replace(attr=self.cross_edge_embedding(found.attr))

    def residue_edges(self, data: Any, *more: Tensor) -> Edges:
        """Return contacts of residues."""
        index, pos = data["receptor", "receptor"].edge_index, data["receptor"].pos
        vectors = pos[index[1]] - pos[index[0]]
        found = self.edges(index, vectors, "rec", self.rec_max_radius, *more)
        return found._replace(attr=self.rec_edge_embedding(found.attr))

    def with_nodes(self, edges: Edges, *nodes: Tensor) -> Tensor:
        """Return the features of edges and the scalars of their nodes."""
        ends = [x[i, : self.ns] for x, i in zip(nodes, edges.index, strict=True)]
        return torch.cat([edges.attr, *ends], 1)

    def scores(self, data: Any, atoms: Tensor, sigmas: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of translations, rotations and torsions."""
        ligand = data["ligand"]
        pos, batch, count = ligand.pos, ligand.batch, len(ligand.pos)
        centers = scatter_mean(pos, batch)
        index = torch.stack([batch, torch.arange(count, device=batch.device)])
        vectors, sigma = pos - centers[batch], ligand.node_sigma_emb
        found = self.edges(index, vectors, "center", 1.0)
        attr = self.center_edge_embedding(torch.cat([found.attr, sigma], 1))
        scalars = atoms[index[1 if self.fixed_center_conv else 0], : self.ns]
        rows = torch.cat([attr, scalars], 1)
        out = self.final_conv(atoms, index, rows, found.sh, out_nodes=data.num_graphs)
        out = out[:, :6] if self.odd_parity else out[:, :6] + out[:, 6:]
        scores = []
        for part, head in ((out[:, :3], self.tr_final_layer), (out[:, 3:], self.rot_final_layer)):
            norm = part.norm(dim=1, keepdim=True)
            sigma = self.time(data.complex_t)
            scores.append(part / norm * head(torch.cat([norm, sigma], 1)))
        if self.scale_by_sigma:
            scores[0] = scores[0] / sigmas[0][:, None]
            scores[1] = scores[1] * so3.score_norm(sigmas[1].cpu())[:, None].to(pos.device)
        return scores[0], scores[1], self.torsions(data, atoms, sigmas[2])

    def torsions(self, data: Any, atoms: Tensor, sigma: Tensor) -> Tensor:
        """Return the scores of torsions."""
        ligand, all_bonds = data["ligand"], data["ligand", "ligand"].edge_index
        bonds, pos = all_bonds[:, ligand.edge_mask], ligand.pos
        if self.no_torsion or not bonds.shape[1]:
            return pos.new_empty(0)
        middle = (pos[bonds[0]] + pos[bonds[1]]) / 2
        index = radius(pos, middle, self.lig_max_radius, ligand.batch, ligand.batch[bonds[0]])
        vectors = pos[index[1]] - middle[index[0]]
        found = self.edges(index, vectors, "lig", self.lig_max_radius)
        axes = o3.spherical_harmonics("2e", pos[bonds[1]] - pos[bonds[0]], True, "component")
        sh = self.final_tp_tor(found.sh, axes[index[0]])
        of_bonds = (atoms[bonds[0]] + atoms[bonds[1]])[index[0], : self.ns]
        features = self.final_edge_embedding(found.attr)
        rows = torch.cat([features, atoms[index[1], : self.ns], of_bonds], 1)
        options = {"out_nodes": bonds.shape[1], "edge_weight": found.weight}
        out = self.tor_bond_conv(atoms, index, rows, sh, **options)
        scores = self.tor_final_layer(out).squeeze(1)
        if not self.scale_by_sigma:
            return scores
        norms = torus.score_norm(sigma[ligand.batch[bonds[0]]].cpu().numpy())
        return scores * torch.tensor(norms).float().sqrt().to(scores.device)


class CGOldModel(Docking):
    """The coarse-grained model of the first release."""

    def __init__(self, t_to_sigma: Any, **options: Any) -> None:
        super().__init__(t_to_sigma, **options)
        self.lm_embedding_type = "esm" if self.language else None
        encoder, ns = double.OldAtomEncoder, self.ns
        self.lig_node_embedding = encoder(ns, LIGAND_SIZES, 8, None)
        self.rec_node_embedding = encoder(ns, RESIDUE_SIZES, 8, self.lm_embedding_type)
        self.rec_edge_embedding = pair(8 + 6, ns)
        irreps = double.irreps_of_layers(ns, self.nv, second_order=self.use_second_order_repr)
        steps = [(irreps[min(i, 3)], irreps[min(i + 1, 3)]) for i in range(self.num_conv_layers)]
        for name in ("lig", "rec", "lig_to_rec", "rec_to_lig"):
            made = [
                double.OldTensorProductConvLayer(a, self.sh_irreps, b, 3 * ns, residual=False)
                for a, b in steps
            ]
            setattr(self, f"{name}_conv_layers", nn.ModuleList(made))
        n_scalars = 2 * ns if self.num_conv_layers >= 3 else ns
        self.make_heads(steps[-1][1], double.OldTensorProductConvLayer, n_scalars)

    def forward(self, data: Any) -> Any:
        if self.no_aminoacid_identities:
            data["receptor"].x = data["receptor"].x * 0
        times = [data.complex_t[kind] for kind in ("tr", "rot", "tor")]
        sigmas = times if self.confidence_mode else self.t_to_sigma(*times)
        ligand, receptor = data["ligand"], data["receptor"]
        own = self.ligand_edges(data)
        atoms = self.lig_node_embedding(torch.cat([ligand.x, ligand.node_sigma_emb], 1))
        receptor.node_sigma_emb = sigma = self.time(receptor.node_t)
        contacts = self.residue_edges(data, sigma[data["receptor", "receptor"].edge_index[0]])
        residues = self.rec_node_embedding(torch.cat([receptor.x, sigma], 1))
        cross = self.cross_edges(data, sigmas[0])
        for at in range(self.num_conv_layers):
            rows = self.with_nodes(cross, atoms, residues)
            new = self.update(self.lig_conv_layers[at], own, atoms)
            new = new + self.rec_to_lig_conv_layers[at](
                residues, cross.index, rows, cross.sh, len(atoms), edge_weight=cross.weight
            )
            if at < self.num_conv_layers - 1:
                other = self.update(self.rec_conv_layers[at], contacts, residues)
                residues = other + self.lig_to_rec_conv_layers[at](
                    atoms, cross.index.flip(0), rows, cross.sh, len(residues), "mean", cross.weight
                )
            atoms = new
        if self.confidence_mode:
            scalars = atoms[:, : self.ns]
            if self.num_conv_layers >= 3:
                scalars = torch.cat([scalars, atoms[:, -self.ns :]], 1)
            return self.confidence_predictor(scatter_mean(scalars, ligand.batch)).squeeze(-1)
        return self.scores(data, atoms, sigmas)

    def update(self, layer: Any, edges: Edges, node: Tensor) -> Tensor:
        """Return nodes with the messages of a layer added."""
        rows = self.with_nodes(edges, node, node)
        out = layer(node, edges.index, rows, edges.sh, edge_weight=edges.weight)
        return out + nn.functional.pad(node, (0, out.shape[1] - node.shape[1]))


class CGModel(Docking):
    """The coarse-grained model of DiffDock-L."""

    def __init__(
        self,
        t_to_sigma: Any,
        differentiate_convolutions: bool = True,
        tp_weights_layers: int = 2,
        num_prot_emb_layers: int = 1,
        reduce_pseudoscalars: bool = False,
        atom_confidence: bool = False,
        sidechain_pred: bool = False,
        depthwise_convolution: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(t_to_sigma, **options)
        self.lm_embedding_type = "precomputed" if self.language else None
        self.differentiate_convolutions = differentiate_convolutions
        self.num_prot_emb_layers, self.embed_also_ligand = num_prot_emb_layers, True
        self.reduce_pseudoscalars, self.sidechain_pred = reduce_pseudoscalars, sidechain_pred
        self.atom_confidence, self.atom_num_confidence_outputs = atom_confidence, 1
        ns, encoder = self.ns, double.AtomEncoder
        self.lig_node_embedding = encoder(ns, LIGAND_SIZES, 8)
        self.rec_node_embedding = encoder(ns, RESIDUE_SIZES, LANGUAGE if self.language else 0)
        self.rec_edge_embedding, self.rec_sigma_embedding = pair(6, ns), pair(8, ns)
        irreps = double.irreps_of_layers(
            ns, self.nv, second_order=self.use_second_order_repr, reduce=reduce_pseudoscalars
        )
        n_layers = num_prot_emb_layers + self.num_conv_layers
        is_faster = len(self.sh_irreps) == 2 and not self.use_second_order_repr

        def make(at: int, groups: int) -> Any:
            ends = irreps[min(at, 3)], self.sh_irreps, irreps[min(at + 1, 3)]
            return double.TensorProductConvLayer(
                *ends,
                3 * ns,
                faster=is_faster,
                edge_groups=groups,
                tp_weights_layers=tp_weights_layers,
                depthwise=depthwise_convolution,
            )

        self.rec_emb_layers, self.lig_emb_layers = (
            nn.ModuleList(make(at, 1) for at in range(num_prot_emb_layers)) for _ in range(2)
        )
        n_groups = [4] * (self.num_conv_layers - 1) + [2]
        self.conv_layers = nn.ModuleList(
            make(at, groups if differentiate_convolutions else 1)
            for at, groups in enumerate(n_groups, num_prot_emb_layers)
        )
        if sidechain_pred:
            out = "4x0e + 2x1e + 4x0o + 2x1o"
            self.sidechain_predictor = o3.Linear(irreps[min(n_layers, 3)], out)
        n_scalars = ns + (self.nv if reduce_pseudoscalars else ns) if n_layers >= 3 else ns
        if atom_confidence:
            self.atom_confidence_predictor = nn.Linear(n_scalars, 1 + ns)
            n_scalars = ns
        self.make_heads(irreps[min(n_layers, 3)], double.TensorProductConvLayer, n_scalars)

    def embed_receptor(self, data: Any) -> tuple[Tensor, Edges]:
        """Return residues and their contacts; the part without the time is kept in the data."""
        receptor, contacts = data["receptor"], data["receptor", "receptor"]
        if not hasattr(receptor, "rec_node_attr"):
            edges = self.residue_edges(data)
            residues = self.rec_node_embedding(receptor.x)
            for layer in self.rec_emb_layers:
                rows = self.with_nodes(edges, residues, residues)
                residues = layer(residues, edges.index, rows, edges.sh, edge_weight=edges.weight)
            receptor.rec_node_attr = residues
            contacts.rec_edge_attr, contacts.edge_sh = edges.attr, edges.sh
            contacts.edge_weight = edges.weight
        sigma = self.rec_sigma_embedding(self.timestep_emb_func(data.complex_t["tr"]))
        residues = receptor.rec_node_attr.clone()
        residues[:, : self.ns] += sigma[receptor.batch]
        attr = contacts.rec_edge_attr + sigma[receptor.batch[contacts.edge_index[0]]]
        return residues, Edges(contacts.edge_index, contacts.edge_sh, attr, contacts.edge_weight)

    def forward(self, data: Any) -> Any:
        if self.no_aminoacid_identities:
            data["receptor"].x = data["receptor"].x * 0
        times = [data.complex_t[kind] for kind in ("tr", "rot", "tor")]
        sigmas = times if self.confidence_mode else self.t_to_sigma(*times)
        ligand = data["ligand"]
        residues, contacts = self.embed_receptor(data)
        own = self.ligand_edges(data)
        atoms = self.lig_node_embedding(torch.cat([ligand.x, ligand.node_sigma_emb], 1))
        for layer in self.lig_emb_layers:
            rows = self.with_nodes(own, atoms, atoms)
            atoms = layer(atoms, own.index, rows, own.sh, edge_weight=own.weight)
        cross = self.cross_edges(data, sigmas[0])
        count = len(atoms)
        shift = torch.tensor([[0], [count]], device=atoms.device)
        signs = torch.tensor([(-1.0) ** l for l in range(3) for _ in range(2 * l + 1)])  # noqa: E741
        groups = [
            own,
            cross._replace(index=cross.index + shift),
            contacts._replace(index=contacts.index + count),
            cross._replace(
                index=(cross.index + shift).flip(0),
                sh=cross.sh * signs[: cross.sh.shape[1]].to(cross.sh),
            ),
        ]
        node = torch.cat([atoms, residues])
        for at, layer in enumerate(self.conv_layers):
            used = groups if at < len(self.conv_layers) - 1 else groups[:2]
            rows: Any = [self.with_nodes(edges, node, node) for edges in used]
            rows = rows if self.differentiate_convolutions else torch.cat(rows)
            index, sh = torch.cat([e.index for e in used], 1), torch.cat([e.sh for e in used])
            weight: Any = 1.0
            if self.smooth_edges:
                weight = torch.cat([e.weight for e in used])
            node = layer(node, index, rows, sh, edge_weight=weight)
        if self.confidence_mode:
            return self.confidences(ligand, node[:count])
        scores = self.scores(data, node[:count], sigmas)
        chains = None
        if self.sidechain_pred:
            chains = self.sidechain_predictor(node[count:])
            chains = chains[:, :10] + chains[:, 10:]
        return *scores, chains

    def confidences(self, ligand: Any, atoms: Tensor) -> tuple[Tensor, Tensor]:
        """Return confidences of poses and of atoms."""
        scalars = atoms[:, : self.ns]
        if self.num_conv_layers + self.num_prot_emb_layers >= 3:
            n_odd = self.nv if self.reduce_pseudoscalars else self.ns
            scalars = torch.cat([scalars, atoms[:, -n_odd:]], 1)
        of_atoms = scalars.new_zeros(len(scalars))
        if self.atom_confidence:
            scalars = self.atom_confidence_predictor(scalars)
            of_atoms, scalars = scalars[:, :1], scalars[:, 1:]
        means = scatter_mean(scalars, ligand.batch)
        return self.confidence_predictor(means).squeeze(-1), of_atoms
