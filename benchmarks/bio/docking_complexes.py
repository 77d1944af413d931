"""Complexes, layer inputs and settings of bench ``docking``, always the same."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

ATOMS, RESIDUES, NEIGHBORS = 30, 300, 24
SIZES = {"ns": 48, "nv": 10, "num_conv_layers": 6}
RADIUS = 21.3  # of a globular protein of 300 residues, in Å
EVERY = 4  # every fourth inner bond is rotatable
SPREAD = 1.0  # of samples about the complex, in Å
SMALLER, LARGER = 0.25, 5.0
"""Factors of embeddings of atoms and of normalizations, and of the last layers of scores."""
LAST = ("tr_final_layer.3.", "rot_final_layer.3.", "tor_final_layer.2.")
LARGEST = 5.0
"""Noise of translations at the time 1, in Å, so that ligands stay close to the receptor."""


def set_neighbors(models: Any) -> None:
    """Let models find neighbors by torch_cluster, or in float32 without it."""
    if find_spec("torch_cluster") is not None:
        import torch_cluster

        models.radius, models.radius_graph = torch_cluster.radius, torch_cluster.radius_graph
    else:
        models.radius, models.radius_graph = _radius, _radius_graph


def calm(model: Any) -> None:
    """Give scores of a model with random weights about the size of a trained one's.

    Messages are products of two functions of the nodes, so values explode from layer to layer
    unless they are small.
    """
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "atom_embedding" in name or ".batch_norm." in name:
                x.mul_(SMALLER)
            elif name.startswith(LAST):
                x.mul_(LARGER)


def diffusion(steps: int) -> Any:
    """Return the diffusion of models of the tests."""
    from mlff_triton.bio import Component, Diffusion
    from tests.bio.models.diffdock.batches import SIGMAS

    low = SIGMAS["tr"][0]
    return Diffusion(
        Component(low, LARGEST), Component(*SIGMAS["rot"]), Component(*SIGMAS["tor"]), steps
    )


def _complex(seed: int, receptor: Any = None) -> Any:
    """Return a ligand in the middle of a receptor."""
    from tests.bio.models.diffdock.batches import make_complex

    torch.manual_seed(seed)
    data = make_complex(ATOMS, RESIDUES, 0.0, 0)
    ligand, residues = data["ligand"], data["receptor"]
    inner = ligand.edge_mask
    ligand.edge_mask = inner & (inner.cumsum(0) % EVERY == 0)
    second = data["ligand", "ligand"].edge_index[1, ligand.edge_mask].numpy()
    ligand.mask_rotate = np.arange(ATOMS) >= second[:, None]
    contacts = data["receptor", "rec_contact", "receptor"]
    if receptor is None:
        directions = torch.nn.functional.normalize(torch.randn(RESIDUES, 3), dim=1)
        residues.pos = directions * RADIUS * torch.rand(RESIDUES, 1) ** (1 / 3)
        distances = torch.cdist(residues.pos, residues.pos).fill_diagonal_(torch.inf)
        nearest = distances.topk(NEIGHBORS, largest=False).indices.flatten()
        first = torch.arange(RESIDUES).repeat_interleave(NEIGHBORS)
        contacts.edge_index = torch.stack([first, nearest])
    else:
        residues.x, residues.pos = receptor["receptor"].x, receptor["receptor"].pos
        contacts.edge_index = receptor["receptor", "receptor"].edge_index
    return data


def ligands(count: int) -> list[Any]:
    """Return complexes of different ligands with the same receptor."""
    first = _complex(0)
    return [first, *(_complex(seed, first) for seed in range(1, count))]


def samples(
    count: int, time: float, device: torch.device, dtype: torch.dtype = torch.float32
) -> Any:
    """Return a batch of samples of one complex."""
    (data,) = parts_of_samples(count, count, time, device, dtype)
    return data


def parts_of_samples(
    count: int, size: int, time: float, device: torch.device, dtype: torch.dtype
) -> Iterator[Any]:
    """Yield the samples of one complex at a time of the diffusion, in batches of a size."""
    from mlff_triton.bio.docking.sampler import set_time
    from mlff_triton.bio.docking.screening import gather

    shifts = torch.randn(count, ATOMS, 3, generator=torch.Generator().manual_seed(1))
    for start in range(0, count, size):
        own = shifts[start : start + size].flatten(0, 1).to(device, torch.float32)
        data = gather([_complex(0)], min(size, count - start), device, torch.float32)
        data["ligand"].pos = data["ligand"].pos + SPREAD * own
        for store in data.stores:
            for name, x in list(store.items()):
                if isinstance(x, Tensor) and x.is_floating_point():
                    store[name] = x.to(dtype)
        set_time(data, time)
        yield data


def layer_inputs(layer: Any, count: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return nodes, edges, features and harmonics of the residues of some samples."""
    index = _complex(0)["receptor", "receptor"].edge_index
    index = torch.cat([index + k * RESIDUES for k in range(count)], 1)
    rng = torch.Generator().manual_seed(2)
    widths = layer.tp.irreps_in1.dim, layer.fc[0].in_features, layer.tp.irreps_in2.dim
    rows = count * RESIDUES, index.shape[1], index.shape[1]
    node, features, harmonics = (
        torch.randn(n, width, generator=rng).to(device)
        for n, width in zip(rows, widths, strict=True)
    )
    return node, index.to(device), features, harmonics


def _radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor,
    batch_y: Tensor,
    max_num_neighbors: int = 32,
) -> Tensor:
    """Return pairs (index of y, index of x) that are closer than r, for complexes of one size."""
    del batch_y
    count = int(batch_x[-1]) + 1
    n, m = len(x) // count, len(y) // count
    vectors = x.view(count, 1, n, 3) - y.view(count, m, 1, 3)
    close = vectors.square().sum(-1) < r * r
    if max_num_neighbors < n:
        close &= close.cumsum(2, dtype=torch.int32) <= max_num_neighbors
    at, row, column = close.nonzero().T
    return torch.stack([at * m + row, at * n + column])


def _radius_graph(x: Tensor, r: float, batch: Tensor, max_num_neighbors: int = 32) -> Tensor:
    receivers, senders = _radius(x, x, r, batch, batch, max_num_neighbors + 1)
    return torch.stack([senders, receivers])[:, receivers != senders]
