"""Structural doubles of DiffDock's layers, written from what they compute, on top of e3nn.

They have the classes, attributes and arguments by which `mlff_triton.bio` recognizes the layers,
and the names and shapes of parameters of the checkpoints (https://arxiv.org/abs/2210.01776 and
https://arxiv.org/abs/2402.18396). `load` gives this file the name of one of the repository's.

Messages of edges are computed one group after another, with a weight per edge and path.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from e3nn import o3
from e3nn.nn import BatchNorm
from torch import Tensor, nn

ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU}


def load(name: str = "layers") -> ModuleType:
    """Import a file of this folder as a module of the repository, so that classes are pickled."""
    full = f"DiffDock.models.{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        for package in ("DiffDock", "DiffDock.models"):
            sys.modules.setdefault(package, ModuleType(package))
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


def network(n_in: int, n_hidden: int, n_out: int, layers: int = 2, activation: str = "relu") -> Any:
    """Return linear maps with an activation and dropout after each but the last."""
    parts: list[nn.Module] = []
    for width in [n_in] + [n_hidden] * (layers - 2):
        parts += [nn.Linear(width, n_hidden), ACTIVATIONS[activation](), nn.Dropout(0.1)]
    return nn.Sequential(*parts, nn.Linear(n_hidden, n_out))


def irreps_of_layers(ns: int, nv: int, *, second_order: bool = False, reduce: bool = False) -> Any:
    """Return the irreps of nodes before the first layer, the second, and so on."""
    vectors = (f"{nv}x1o + {nv}x2e", f"{nv}x1e + {nv}x2o") if second_order else ()
    first, second = vectors or (f"{nv}x1o", f"{nv}x1e")
    found = [f"{ns}x0e"]
    for more in (first, second, f"{nv if reduce else ns}x0o"):
        found.append(f"{found[-1]} + {more}")
    return found


class FasterTensorProduct(nn.Module):
    """Product with harmonics of degree 0 and 1, with one matrix of weights per output."""

    def __init__(self, in_irreps: Any, out_irreps: Any) -> None:
        super().__init__()
        self.in_irreps, self.out_irreps = o3.Irreps(in_irreps), o3.Irreps(out_irreps)
        n, m = (
            {str(ir): sum(k for k, other in irreps if other == ir) for ir in self._kinds()}
            for irreps in (self.in_irreps, self.out_irreps)
        )
        self.weight_shapes = {
            "0e": (n["0e"] + n["1o"], m["0e"]),
            "1o": (n["0e"] + n["1o"] + n["1e"], m["1o"]),
            "1e": (n["1o"] + n["1e"] + n["0o"], m["1e"]),
            "0o": (n["1e"] + n["0o"], m["0o"]),
        }
        self.weight_numel = sum(a * b for a, b in self.weight_shapes.values())

    @staticmethod
    def _kinds() -> list[Any]:
        return [o3.Irrep(name) for name in ("0e", "1o", "1e", "0o")]

    def forward(self, x: Tensor, sh: Tensor, weight: Tensor) -> Tensor:
        given = {
            str(ir): x[:, part].view(len(x), k, ir.dim)
            for (k, ir), part in zip(self.in_irreps, self.in_irreps.slices(), strict=True)
        }
        one, vector = sh[:, :1, None], sh[:, None, 1:]
        terms: dict[str, dict[str, Tensor]] = {name: {} for name in self.weight_shapes}
        for scalar, polar, axial in (("0e", "1o", "1e"), ("0o", "1e", "1o")):
            if scalar in given:
                terms[scalar][scalar] = given[scalar] * one
                terms[polar][scalar] = given[scalar] * vector
            if polar in given:
                dot = (given[polar] * vector).sum(-1, keepdim=True)
                terms[scalar][polar] = dot / 3**0.5
                terms[polar][polar] = given[polar] * one
                terms[axial][polar] = torch.linalg.cross(given[polar], vector) / 2**0.5
        parts, start = {}, 0
        for name, (n_in, n_out) in self.weight_shapes.items():
            w = weight[:, start : start + n_in * n_out].view(len(x), n_in, n_out)
            start += n_in * n_out
            if n_out:
                order = ("0e", "1o", "1e", "0o")
                rows = torch.cat([terms[name][kind] for kind in order if kind in terms[name]], 1)
                parts[name] = torch.einsum("eum,euw->ewm", rows, w) / n_in**0.5
        return torch.cat([parts[str(ir)].flatten(1) for _, ir in self.out_irreps], 1)


class TensorProductConvLayer(nn.Module):
    """The convolution of DiffDock-L."""

    def __init__(
        self,
        in_irreps: str,
        sh_irreps: Any,
        out_irreps: str,
        n_edge_features: int,
        residual: bool = True,
        batch_norm: bool = True,
        hidden_features: int | None = None,
        faster: bool = False,
        edge_groups: int = 1,
        tp_weights_layers: int = 2,
        activation: str = "relu",
        depthwise: bool = False,
    ) -> None:
        super().__init__()
        self.in_irreps, self.out_irreps, self.sh_irreps = in_irreps, out_irreps, sh_irreps
        self.residual, self.edge_groups, self.depthwise = residual, edge_groups, depthwise
        self.out_size = o3.Irreps(out_irreps).dim
        if depthwise:
            self._make_depthwise(*map(o3.Irreps, (in_irreps, sh_irreps, out_irreps)))
        elif faster:
            self.tp = FasterTensorProduct(in_irreps, out_irreps)
        else:
            self.tp = o3.FullyConnectedTensorProduct(
                in_irreps, sh_irreps, out_irreps, shared_weights=False
            )
        sizes = n_edge_features, hidden_features or n_edge_features, self.tp.weight_numel
        made = [network(*sizes, tp_weights_layers, activation) for _ in range(edge_groups)]
        self.fc = made[0] if edge_groups == 1 else nn.ModuleList(made)
        self.batch_norm = BatchNorm(out_irreps) if batch_norm else None

    def _make_depthwise(self, node: Any, harmonics: Any, out: Any) -> None:
        paths = [
            (i, j, (count, product))
            for i, (count, first) in enumerate(node)
            for j, (_, second) in enumerate(harmonics)
            for product in first * second
            if product in out
        ]
        middle, places, _ = o3.Irreps([path[2] for path in paths]).sort()
        instructions = [(i, j, places[k], "uvu", True) for k, (i, j, _) in enumerate(paths)]
        self.tp = o3.TensorProduct(
            node, harmonics, middle, instructions, shared_weights=False, internal_weights=False
        )
        self.linear_2 = o3.Linear(middle.simplify(), out)

    def forward(
        self,
        node_attr: Tensor,
        edge_index: Tensor,
        edge_attr: Any,
        edge_sh: Tensor,
        out_nodes: int | None = None,
        reduce: str = "mean",
        edge_weight: Any = 1.0,
    ) -> Tensor:
        n_edges = edge_index.shape[1]
        if n_edges == 0:
            out = node_attr.new_zeros(len(node_attr), self.out_size)
        else:
            groups = [edge_attr] if self.edge_groups == 1 else edge_attr
            networks = [self.fc] if self.edge_groups == 1 else self.fc
            weights = torch.cat([f(x) for f, x in zip(networks, groups, strict=True)])
            out = averaged(
                self.tp, weights * edge_weight, node_attr, edge_index, edge_sh, out_nodes, reduce
            )
            out = self.linear_2(out) if self.depthwise else out
            out = self.batch_norm(out) if self.batch_norm else out
        if self.residual:
            out = out + nn.functional.pad(node_attr, (0, out.shape[-1] - node_attr.shape[-1]))
        return out


class OldTensorProductConvLayer(nn.Module):
    """The convolution of DiffDock's first release, with weights of edges."""

    def __init__(
        self,
        in_irreps: str,
        sh_irreps: Any,
        out_irreps: str,
        n_edge_features: int,
        residual: bool = True,
        batch_norm: bool = True,
        hidden_features: int | None = None,
    ) -> None:
        super().__init__()
        self.in_irreps, self.out_irreps, self.sh_irreps = in_irreps, out_irreps, sh_irreps
        self.residual = residual
        self.tp = o3.FullyConnectedTensorProduct(
            in_irreps, sh_irreps, out_irreps, shared_weights=False
        )
        n_hidden = hidden_features or n_edge_features
        self.fc = network(n_edge_features, n_hidden, self.tp.weight_numel)
        self.batch_norm = BatchNorm(out_irreps) if batch_norm else None

    def forward(
        self,
        node_attr: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        edge_sh: Tensor,
        out_nodes: int | None = None,
        reduce: str = "mean",
        edge_weight: Any = 1.0,
    ) -> Tensor:
        if not len(edge_attr):
            raise ValueError("number sections must be larger than 0")
        weights = self.fc(edge_attr) * edge_weight
        out = averaged(self.tp, weights, node_attr, edge_index, edge_sh, out_nodes, reduce)
        if self.residual:
            out = out + nn.functional.pad(node_attr, (0, out.shape[-1] - node_attr.shape[-1]))
        return self.batch_norm(out) if self.batch_norm else out


class FirstConvLayer(OldTensorProductConvLayer):
    """The convolution of the first release as it came, without weights of edges."""

    def forward(  # type: ignore[override]
        self,
        node_attr: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        edge_sh: Tensor,
        out_nodes: int | None = None,
        reduce: str = "mean",
    ) -> Tensor:
        weights = self.fc(edge_attr)
        out = averaged(self.tp, weights, node_attr, edge_index, edge_sh, out_nodes, reduce)
        if self.residual:
            out = out + nn.functional.pad(node_attr, (0, out.shape[-1] - node_attr.shape[-1]))
        return self.batch_norm(out) if self.batch_norm else out


FirstConvLayer.__name__ = "TensorProductConvLayer"


def averaged(
    tp: Any, weights: Tensor, node: Tensor, index: Tensor, sh: Tensor, n_out: Any, reduce: str
) -> Tensor:
    """Return the sums or means over the edges of each receiver, the first row of the index."""
    messages = tp(node[index[1]], sh, weights)
    n_out = int(n_out or len(node))
    sums = messages.new_zeros(n_out, messages.shape[1]).index_add(0, index[0], messages)
    counts = torch.bincount(index[0], minlength=n_out).clamp(min=1)
    return sums / counts[:, None] if reduce == "mean" else sums


class GaussianSmearing(nn.Module):
    """Gaussians of distances at equal steps."""

    def __init__(self, start: float, stop: float, num_gaussians: int) -> None:
        super().__init__()
        offset = torch.linspace(start, stop, num_gaussians)
        self.coeff = -0.5 / float(offset[1] - offset[0]) ** 2
        self.register_buffer("offset", offset)

    def forward(self, dist: Tensor) -> Tensor:
        return (self.coeff * (dist[:, None] - self.offset) ** 2).exp()


class AtomEncoder(nn.Module):
    """Sum of embeddings, and a map of it and of other features."""

    def __init__(self, emb_dim: int, sizes: list[int], n_more: int) -> None:
        super().__init__()
        self.atom_embedding_list = nn.ModuleList(nn.Embedding(n, emb_dim) for n in sizes)
        self.num_categorical_features, self.additional_features_dim = len(sizes), n_more
        if n_more:
            self.additional_features_embedder = nn.Linear(n_more + emb_dim, emb_dim)

    def forward(self, x: Tensor) -> Tensor:
        found = sum(table(x[:, i].long()) for i, table in enumerate(self.atom_embedding_list))
        if self.additional_features_dim:
            rows = torch.cat([found, x[:, self.num_categorical_features :]], 1)
            found = self.additional_features_embedder(rows)
        return found


class OldAtomEncoder(nn.Module):
    """Sum of embeddings and a map of other features, and a map with those of a language model.

    Features of the language model come before the others, which the maps do not heed.
    """

    def __init__(self, emb_dim: int, sizes: list[int], n_more: int, lm_type: str | None) -> None:
        super().__init__()
        self.atom_embedding_list = nn.ModuleList(nn.Embedding(n, emb_dim) for n in sizes)
        self.num_categorical_features, self.num_scalar_features = len(sizes), n_more
        self.lm_embedding_type = lm_type
        if n_more:
            self.linear = nn.Linear(n_more, emb_dim)
        if lm_type is not None:
            self.lm_embedding_dim = 1280
            self.lm_embedding_layer = nn.Linear(self.lm_embedding_dim + emb_dim, emb_dim)

    def forward(self, x: Tensor) -> Tensor:
        kinds = self.num_categorical_features
        found = sum(table(x[:, i].long()) for i, table in enumerate(self.atom_embedding_list))
        if self.num_scalar_features:
            found = found + self.linear(x[:, kinds : kinds + self.num_scalar_features])
        if self.lm_embedding_type is not None:
            found = self.lm_embedding_layer(torch.cat([found, x[:, -self.lm_embedding_dim :]], 1))
        return found
