"""Random complexes and weights for the tests of the operators on complexes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.packing import find_rows
from mlff_triton.kernels.binding.types import (
    FRAMES,
    PARTS,
    FrameNetwork,
    Layout,
    Readout,
    Tokens,
)
from mlff_triton.kernels.numerics.split import SHIFT, split_weight
from mlff_triton.kernels.types.linear import Linear

SLOTS = 3  # atoms per residue


def random(*shape: int) -> Tensor:
    """Return random values in float64 that are exact in float32."""
    return torch.randn(*shape).double()


class Complexes:
    """Padded complexes with missing atoms, the last of which has fewer atoms.

    Empty slots have positions too. Rows that are not in use hold NaN; on a GPU there are some.
    """

    def __init__(
        self, n_complexes: int, n_ligand: int, n_residues: int, channels: int, n_unused: int = 0
    ) -> None:
        torch.manual_seed(n_residues)
        groups = n_ligand + n_residues
        self.n_ligand, self.channels = SLOTS * n_ligand, channels
        self.positions = 4 * random(n_complexes, groups * SLOTS, 3) + 20
        self.kept = torch.rand(n_complexes, groups * SLOTS) < 0.8
        self.kept[:, 1], self.kept[:, -1] = True, True
        self.kept[-1, -(n_residues * SLOTS // 2) : -1] = False
        self.kinds = torch.randint(5, self.kept.shape)
        self.groups = random(n_complexes, groups, PARTS, channels)
        self.kind_rows = random(5, PARTS, channels)
        self.directions = random(4, 3, channels) / 4
        packed = find_rows(self.kept)
        counts = self.kept[:, : self.n_ligand].sum(1).int()
        token = nn.functional.pad(packed.token, (0, n_unused), value=self.kept.numel() - 1)
        self.layout = Layout(token, packed.row_ptr, counts)
        n_tokens = len(token)
        self.tokens = Tokens(
            self.positions.flatten(0, 1)[token.long()],
            random(3, n_tokens),
            *(random(n_tokens, channels) for _ in range(PARTS)),
        )
        self.attended = random(n_tokens, FRAMES, channels)
        unused = slice(len(packed.token), None)
        self.tokens.coordinates[:, unused] = torch.nan
        for part in (self.tokens.positions, *self.tokens[2:], self.attended):
            part[unused] = torch.nan

    @property
    def max_lengths(self) -> tuple[int, int]:
        return self.n_ligand, self.kept.shape[1] - self.n_ligand


def linear(n_in: int, n_out: int) -> Linear:
    """Return a random map."""
    return Linear((random(n_in, n_out) / n_in**0.5).float().double(), random(n_out))


def network(channels: int, hidden: int) -> FrameNetwork:
    """Return a random network."""
    norms = [(random(channels), random(channels), 1e-5) for _ in range(2)]
    up, down = linear(channels, hidden), linear(hidden, channels)
    return FrameNetwork(linear(channels, channels), norms[0], up, down, norms[1])


def readout(channels: int) -> Readout:
    """Return random maps."""
    return Readout(*(linear(channels, channels) for _ in range(3)))


def to_device(value: Any, device: str) -> Any:
    """Move all tensors of a structure, with floating ones in float32 and weights as halves."""
    if isinstance(value, Tensor):
        return value.to(device, torch.float32 if value.is_floating_point() else value.dtype)
    if isinstance(value, Linear):
        return Linear(
            split_weight(value.weight, "shifted_halves").to(device), to_device(value.bias, device)
        )
    if isinstance(value, tuple):
        parts = [to_device(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def split(x: Tensor) -> Tensor:
    """Split values [...] into halves [2, ...]."""
    high = x.half()
    return torch.stack([high, ((x - high) * SHIFT).half()])


def joined(parts: Tensor) -> Tensor:
    """Return the values [...] of halves [2, ...]."""
    high, low = parts.double()
    return high + low / SHIFT


def split_tokens(tokens: Tokens, device: str) -> Tokens:
    """Move tokens, with halves of keys and values."""
    moved: Tokens = to_device(tokens, device)
    keys, values = (split(part).to(device) for part in (tokens.keys, tokens.values))
    return moved._replace(keys=keys, values=values)
