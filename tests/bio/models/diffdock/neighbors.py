"""Neighbors and sums of groups as torch_cluster and torch_scatter compute them, in plain PyTorch.

`install` lets DiffDock's own code import them, where these packages are not installed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

LIGAND_SIZES = [119, 4, 12, 12, 8, 10, 6, 6, 2, 8, 2, 2, 2, 2, 2, 2]
RESIDUE_SIZES, RECEPTOR_ATOM_SIZES = [38], [38, 119, 23, 38]
"""Numbers of categories of each feature."""


def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int = 32,
) -> Tensor:
    """Return pairs (index of y, index of x) of one batch that are closer than r, by y."""
    close = torch.cdist(y.double(), x.double()) < r
    if batch_x is not None and batch_y is not None:
        close &= batch_y[:, None] == batch_x
    close &= close.cumsum(1) <= max_num_neighbors
    return close.nonzero().T


def radius_graph(x: Tensor, r: float, batch: Tensor, max_num_neighbors: int = 32) -> Tensor:
    """Return pairs of different nodes that are closer than r."""
    receivers, senders = radius(x, x, r, batch, batch, max_num_neighbors + 1)
    return torch.stack([senders, receivers])[:, receivers != senders]


def scatter(
    src: Tensor, index: Tensor, dim: int = 0, dim_size: Any = None, reduce: str = "sum"
) -> Tensor:
    """Return the sums or means of groups of rows; 0 for empty groups."""
    assert dim == 0
    size = int(index.max()) + 1 if dim_size is None else int(dim_size)
    sums = src.new_zeros(size, *src.shape[1:]).index_add(0, index, src)
    if reduce == "sum":
        return sums
    return sums / torch.bincount(index, minlength=size).clamp(min=1)[:, None]


def scatter_mean(src: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """Return the means of groups of rows."""
    return scatter(src, index, dim, reduce="mean")


so3 = SimpleNamespace(score_norm=lambda eps: torch.expm1(eps.double() ** 2).rsqrt().float())
torus = SimpleNamespace(score_norm=lambda sigma: 1 / np.expm1(np.asarray(sigma, float) ** 2))
"""Functions of the noise in place of DiffDock's tables, which take minutes to compute.

They have the limits of these: sizes of scores go as the inverse of small noise, and vanish as
``exp(-sigma^2 / 2)`` for noise that reaches around the circle.
"""


def install(root: Path) -> None:
    """Let the modules in a checkout of DiffDock be imported."""
    import torch_geometric.data  # noqa: F401 - first, as it looks for the packages below

    made = {
        "torch_scatter": {"scatter": scatter, "scatter_mean": scatter_mean},
        "torch_cluster": {"radius": radius, "radius_graph": radius_graph},
        "esm": {},
        "esm.pretrained": {"load_model_and_alphabet": None},
        "datasets": {},
        "datasets.process_mols": {
            "lig_feature_dims": (LIGAND_SIZES, 0),
            "rec_residue_feature_dims": (RESIDUE_SIZES, 0),
            "rec_atom_feature_dims": (RECEPTOR_ATOM_SIZES, 0),
        },
        "utils": {"so3": so3, "torus": torus},
    }
    for name, members in made.items():
        is_own = name.partition(".")[0] in ("datasets", "utils")
        if is_own or importlib.util.find_spec(name.partition(".")[0]) is None:
            module = sys.modules[name] = ModuleType(name)
            vars(module).update(members)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
