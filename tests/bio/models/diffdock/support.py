"""Layers and models of DiffDock with random weights, and edges for layers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn

from tests.bio.models.diffdock import layers as source
from tests.bio.models.diffdock.batches import to_sigma

layers, models = source.load("layers"), source.load("models")

N_NODES, N_EDGES, N_FEATURES = 8, 30, 12
CONSTANTS = ("w3j", "output_mask", "offset")
"""Parts of the names of buffers that e3nn and Gaussians compute in their own dtype."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors in a dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def randomize(model: nn.Module) -> nn.Module:
    """Give normalizations statistics, weights and biases; return the model for evaluation."""
    with torch.no_grad():
        for name, x in (*model.named_buffers(), *model.named_parameters()):
            if name.endswith("running_var") or "norm.weight" in name:
                x.uniform_(0.5, 2)
            elif name.endswith(("running_mean", "norm.bias")):
                x.normal_()
    return model.eval()


def with_weights_of(other: nn.Module, model: nn.Module) -> nn.Module:
    """Return a model with the weights of another, in its own dtype."""
    weights = {
        name: x
        for name, x in other.state_dict().items()
        if not any(part in name for part in CONSTANTS)
    }
    model.load_state_dict(weights, strict=False)
    return model


def irreps_of(kind: str, step: int, second_order: bool) -> tuple[str, Any, str]:
    """Return the irreps of nodes, edges and results of a layer."""
    found = layers.irreps_of_layers(4, 2, second_order=second_order)
    harmonics = o3.Irreps.spherical_harmonics(1 if kind == "faster" else 2)
    return found[min(step, 3)], harmonics, found[min(step + 1, 3)]


def make_layer(kind: str, step: int, second_order: bool, residual: bool = True) -> Any:
    """Return a layer of some kind, the first, second and so on of a model."""
    torch.manual_seed(step)
    irreps = irreps_of(kind, step, second_order)
    if kind in ("separate", "first release"):
        is_first = kind == "first release"
        old = layers.FirstConvLayer if is_first else layers.OldTensorProductConvLayer
        return randomize(old(*irreps, N_FEATURES, residual))
    return randomize(
        layers.TensorProductConvLayer(
            *irreps,
            N_FEATURES,
            residual,
            faster=kind == "faster",
            edge_groups=4 if kind == "groups" else 1,
            tp_weights_layers=3 if kind == "shared" else 2,
            activation="silu" if kind == "depthwise" else "relu",
            depthwise=kind == "depthwise",
        )
    )


def edges_of(kind: str, step: int, second_order: bool) -> Callable[[torch.dtype], list[Any]]:
    """Return a function that makes a layer's arguments in a dtype; the last node has no edges."""
    node, harmonics, _ = irreps_of(kind, step, second_order)

    def make(dtype: torch.dtype) -> list[Any]:
        torch.manual_seed(1)
        index = torch.randint(N_NODES - 1, (2, N_EDGES))
        widths = (N_NODES, o3.Irreps(node).dim), (N_EDGES, N_FEATURES), (N_EDGES, harmonics.dim)
        x, features, sh = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in widths)
        groups: Any = list(features.split([10, 0, 15, 5])) if kind == "groups" else features
        return [x, index, groups, sh]

    return make


def make_model(name: str, options: Mapping[str, Any]) -> Any:
    """Return a structural double of a model."""
    torch.manual_seed(0)
    return randomize(getattr(models, name)(to_sigma, **options))


def embed_time(times: Tensor) -> Tensor:
    """Return sines and cosines [N, 8] of times, in the default dtype."""
    angles = 10000 * times[:, None] * torch.exp(-math.log(10000) / 3 * torch.arange(4)).to(times)
    return torch.cat([angles.sin(), angles.cos()], 1).to(torch.get_default_dtype())


def repository(root: Path) -> dict[str, Any]:
    """Return the coarse-grained models of a checkout."""
    found = {}
    for file, name in (
        ("cg_model", "CGModel"),
        ("old_cg_model", "CGOldModel"),
        ("score_model", "TensorProductScoreModel"),
    ):
        if (root / "models" / f"{file}.py").exists():
            found[name] = getattr(importlib.import_module(f"models.{file}"), name)
    return found


def make_original(kind: Any, options: Mapping[str, Any]) -> Any:
    """Return a small model of the repository."""
    torch.manual_seed(0)
    sizes = {"sigma_embed_dim": 8, "ns": 4, "nv": 2, "num_conv_layers": 2}
    sizes |= {"distance_embed_dim": 6, "cross_distance_embed_dim": 6}
    settings = sizes | {"dynamic_max_cross": True} | dict(options)
    return randomize(kind(to_sigma, torch.device("cpu"), embed_time, **settings))
