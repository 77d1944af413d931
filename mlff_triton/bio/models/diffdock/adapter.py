"""Adapters for DiffDock's score and confidence models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward
from mlff_triton.bio.core.operators import convolution_operators
from mlff_triton.bio.core.weights import converted
from mlff_triton.bio.models.diffdock.atoms import AtomTable, n_features
from mlff_triton.bio.models.diffdock.complexes import (
    degree_of,
    keep_receptor_edges,
    receptor_edges,
    signs_of_inversion,
)
from mlff_triton.bio.models.diffdock.layer_adapter import PRECISION, WATCHED
from mlff_triton.bio.models.diffdock.network import (
    Docking,
    Encoded,
    Receptors,
    cross_cutoff,
    encode_separate,
    encode_shared,
    keep_receptor,
)
from mlff_triton.bio.models.diffdock.readout import (
    confidences,
    rotatable_bonds,
    score_norms,
    scores,
    unencoded,
)
from mlff_triton.bio.models.diffdock.structure import is_separate_model, is_shared_model
from mlff_triton.bio.models.diffdock.weights import Convolution, bond_product

LIGAND, RECEPTOR = "ligand", "receptor"
NEEDED = (
    (LIGAND, ("x", "pos", "batch", "edge_mask")),
    (RECEPTOR, ("x", "pos", "batch")),
    ((LIGAND, LIGAND), ("edge_index", "edge_attr")),
    ((RECEPTOR, RECEPTOR), ("edge_index",)),
)
"""Tensors of a batch of complexes that models read."""


class DockingForward(FastForward[Docking]):
    """Scores or confidences of a batch of complexes.

    The model's own functions find neighbors. Features out of range and unknown nodes give NaN.
    """

    watches = WATCHED

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's original ``forward`` would return."""
        data = args[0] if args else kwargs.get("data")
        found = {"data": data} | dict(_tensors(data))
        return self.serve(self.compute, lambda **_: self.original(*args, **kwargs), (), found)

    def read(self) -> Docking:
        """Read the present weights."""
        model, dtype = self.module, self.dtype
        lists = {
            name: list(child) if isinstance(child, nn.ModuleList) else [child]
            for name, child in model.named_children()
            if name in ("final_conv", "tor_bond_conv")
            or name.endswith(("conv_layers", "emb_layers"))
        }
        product = getattr(model, "final_tp_tor", None)
        return Docking(
            model,
            convolution_operators(self.backend),
            {
                name: [Convolution.of(each, dtype) for each in found]
                for name, found in lists.items()
            },
            converted(AtomTable.of(model.lig_node_embedding), dtype),
            converted(AtomTable.of(model.rec_node_embedding), dtype),
            signs_of_inversion(degree_of(model)).to(self.parameter.device, dtype),
            None if product is None else bond_product(product).to(self.parameter.device, dtype),
        )

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse other precisions than the parameters', and data that the model cannot read."""
        if self.parameter.dtype != self.dtype:
            return PRECISION
        data = arguments["data"]
        for store, names in NEEDED:
            for name in names:
                x = arguments.get(f"{store} {name}")
                if not isinstance(x, Tensor):
                    return f"the data has no tensor {name} of {store}"
                if x.device != self.parameter.device:
                    return f"{name} of {store} is on another device than the parameters"
        if any(data[store].pos.dtype != self.dtype for store in (LIGAND, RECEPTOR)):
            return "positions are not of the dtype of the parameters"
        if not (isinstance(getattr(data, "complex_t", None), Mapping) and len(data[LIGAND].x)):
            return "the data has no complex_t, or no atoms: call set_time of DiffDock first"
        return self._misfit(data)

    def _misfit(self, data: Any) -> str | None:
        """Return which features do not fit the model, if any."""
        embedded = self.time_width
        for store, encoder, width in (
            (LIGAND, self.module.lig_node_embedding, self.module.sigma_embed_dim),
            (RECEPTOR, self.module.rec_node_embedding, embedded),
        ):
            x = data[store].x
            if x.ndim != 2 or x.shape[1] + width != n_features(encoder):
                return f"x of {store} does not have as many features as the model reads"
            if len(x) != len(data[store].pos) or len(x) != len(data[store].batch):
                return f"x, pos and batch of {store} do not have the same length"
        return None

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Any:
        """Return scores or, for a confidence model, confidences."""
        del begun
        docking, data, model = self.weights, arguments["data"], self.module
        self._hide_identities(data)
        times = [data.complex_t[kind] for kind in ("tr", "rot", "tor")]
        sigmas = tuple(times if model.confidence_mode else model.t_to_sigma(*times))
        cutoff = cross_cutoff(model, sigmas[0])
        if not model.confidence_mode:
            given = unencoded(model, data, sigmas)
            encoded = self.encode(docking, data, cutoff)
            return scores(docking, data, encoded, given, sigmas[0])
        found = confidences(docking, data, self.encode(docking, data, cutoff).ligand)
        return found if hasattr(model, "atom_confidence") else found[0]

    def _hide_identities(self, data: Any) -> None:
        """Set the features of residues to zero for models that do not know amino acids."""
        if getattr(self.module, "no_aminoacid_identities", False):
            data[RECEPTOR].x = data[RECEPTOR].x * 0

    def prepare(self, data: Any, time: float) -> None:
        """Store with a batch the data that calls would wait for or recompute.

        The data are rotatable bonds, norms of scores, and sorted contacts of residues. All
        complexes are at the same given time. Bonds and contacts must not change afterwards.
        """
        model, ligand = self.module, data[LIGAND]
        keep_receptor_edges(data)
        if not hasattr(ligand, "rotatable_bonds"):
            ligand.rotatable_bonds = rotatable_bonds(model, data)
        if not model.confidence_mode and model.scale_by_sigma:
            times = torch.full((1,), time, dtype=ligand.pos.dtype)
            _, of_rotations, of_torsions = model.t_to_sigma(times, times, times)
            norms = score_norms(model, of_rotations, of_torsions, times.device)
            where = {"dtype": norms[0].dtype, "device": ligand.pos.device}
            data.score_norms = [torch.full((data.num_graphs,), float(x), **where) for x in norms]

    @property
    @abstractmethod
    def time_width(self) -> int:
        """Number of features of residues that embed the time."""

    @abstractmethod
    def encode(self, docking: Docking, data: Any, cutoff: Any) -> Encoded:
        """Return nodes after all layers, for a cutoff between ligands and receptors."""

    @abstractmethod
    def share(self, receptors: Any, data: Any, residues: Tensor, edges: Tensor) -> None:
        """Let each receptor of a batch be computed once, as far as its copies have the same values.

        All complexes must be at one time in every call, and contacts must not change.

        Parameters
        ----------
        receptors : torch_geometric.data.Batch
            Complexes with all receptors.
        data : torch_geometric.data.Batch
            Batch.
        residues, edges : int64 [M], [E]
            Residues and contacts among those of the receptors, of each one in the batch.
        """


class SharedDockingForward(DockingForward):
    """Scores or confidences of DiffDock-L."""

    supported = "the models of DiffDock-L"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a model of DiffDock-L with its own classes and known settings."""
        return is_shared_model(module)

    @property
    def time_width(self) -> int:
        """Number of features of residues that embed the time: none."""
        return 0

    def encode(self, docking: Docking, data: Any, cutoff: Any) -> Encoded:
        """Return nodes after all layers, for a cutoff between ligands and receptors."""
        return encode_shared(docking, data, cutoff)

    def share(self, receptors: Any, data: Any, residues: Tensor, edges: Tensor) -> None:
        """Store with a batch the embeddings of its receptors; each receptor is embedded once."""
        if self.backend is None or self.module.training or self._update() is not None:
            return
        self._hide_identities(receptors)
        keep_receptor(self.weights, receptors, receptor_edges(receptors))
        contacts = receptors[RECEPTOR, RECEPTOR]
        kept = data[RECEPTOR, RECEPTOR]
        data[RECEPTOR].rec_node_attr = receptors[RECEPTOR].rec_node_attr[residues]
        for name in ("rec_edge_attr", "edge_sh", "edge_weight"):
            x = contacts[name]
            kept[name] = x[edges] if isinstance(x, Tensor) else x


class SeparateDockingForward(DockingForward):
    """Scores or confidences of DiffDock's first release."""

    supported = "the coarse-grained models of DiffDock 1"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a model of the first release with its own classes and known settings."""
        return is_separate_model(module)

    @property
    def time_width(self) -> int:
        """Number of features of residues that embed the time."""
        width: int = self.module.sigma_embed_dim
        return width

    def encode(self, docking: Docking, data: Any, cutoff: Any) -> Encoded:
        """Return nodes after all layers, for a cutoff between ligands and receptors."""
        return encode_separate(docking, data, cutoff)

    def share(self, receptors: Any, data: Any, residues: Tensor, edges: Tensor) -> None:
        """Keep with a batch its receptors, for what does not depend on their copies."""
        for each in (receptors, data):
            keep_receptor_edges(each)
        alone, copies = receptor_edges(receptors), receptor_edges(data)
        place = torch.empty_like(alone.order)
        place[alone.order] = torch.arange(alone.size, device=place.device)
        self._hide_identities(receptors)
        data[RECEPTOR].shared = Receptors(receptors, residues, place[edges[copies.order]])


def _tensors(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that models read, by the names of their stores."""
    with suppress(TypeError, KeyError, AttributeError, IndexError):
        for store, names in NEEDED:
            for name in names:
                yield f"{store} {name}", getattr(data[store], name, None)
