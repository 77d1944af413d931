"""Random residues, edges and networks for the tests of the operators on residues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mlff_triton.bio.models.protein_mpnn.weights import split_networks
from mlff_triton.kernels.residues.types import EdgeNetwork, ResidueNetwork
from mlff_triton.kernels.types.linear import Linear
from mlff_triton.kernels.types.norm import Norm

KINDS = [torch.float32, torch.float64, "halves"]
SIZES = [(1, 1, 16), (5, 3, 32), (37, 20, 16), (9, 48, 128)]  # residues, neighbors, channels


class Case:
    """Random residues, edges and networks, whose values are exact in float32."""

    def __init__(self, n_residues: int, n_neighbors: int, channels: int) -> None:
        torch.manual_seed(n_residues)
        self.x = random(n_residues, channels)
        self.edges = random(n_residues, n_neighbors, channels)
        self.receivers, senders = random(2, n_residues, channels)
        self.senders = torch.cat([senders, random(3, channels)])
        self.sources = torch.randint(len(self.senders), (n_residues, n_neighbors)).int()
        self.mask = (torch.arange(n_residues) % 4 != 1).double()
        self.weights = (torch.rand(n_residues, n_neighbors) < 0.7).double()
        self.network = EdgeNetwork(
            random(channels, channels) / channels**0.5,
            linear(channels, channels),
            linear(channels, channels),
        )
        wide = 4 * channels
        self.residues = ResidueNetwork(
            norm(channels), linear(channels, wide), linear(wide, channels), norm(channels)
        )


def random(*shape: int) -> Tensor:
    """Return random values in float64 that are exact in float32."""
    return torch.randn(*shape).double()


def linear(n_in: int, n_out: int) -> Linear:
    """Return a random map."""
    return Linear((random(n_in, n_out) / n_in**0.5).float().double(), random(n_out))


def norm(channels: int) -> Norm:
    """Return a random normalization."""
    return random(channels), random(channels), 1e-5


def dtype_of(kind: torch.dtype | str) -> torch.dtype:
    """Return the dtype of activations; those of "halves" are float32."""
    return kind if isinstance(kind, torch.dtype) else torch.float32


def moved(given: Sequence[Any], device: str, kind: torch.dtype | str) -> list[Any]:
    """Move arguments, floating ones in the dtype of a kind, and split weights for "halves"."""
    arguments = [_moved(value, device, dtype_of(kind)) for value in given]
    return split_networks(arguments) if kind == "halves" else arguments


def _moved(value: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, tuple):
        parts = [_moved(part, device, dtype) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
