"""The energy of each atom from its tensor: invariants, and the networks that act on them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton.model.activations import ACTIVATIONS
from mlff_triton.model.config import TensorNetConfig
from mlff_triton.model.irreps import irrep_norms


class ScalarHead(nn.Module):
    """TorchMD-NET's ``Scalar`` output network, with layers F -> F/2 (-> F/2 ...) -> 1."""

    def __init__(self, config: TensorNetConfig, hidden_layers: int = 0) -> None:
        super().__init__()
        channels = config.hidden_channels
        half = channels // 2
        self.activation = ACTIVATIONS[config.activation]
        self.linear1 = nn.Linear(channels, half)
        self.hidden = nn.ModuleList([nn.Linear(half, half) for _ in range(hidden_layers)])
        self.linear2 = nn.Linear(half, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map features [N, F] to energies [N]."""
        x = self.activation(self.linear1(x))
        for linear in self.hidden:
            x = self.activation(linear(x))
        energies: Tensor = self.linear2(x)
        return energies[:, 0]


class GatedHead(nn.Module):
    """MatGL's ``WeightedReadOut``: two networks F -> F -> F -> F -> 1, one gating the other."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        pairs = list(pairwise([config.hidden_channels] * 4 + [1]))
        self.values = nn.ModuleList([nn.Linear(*pair) for pair in pairs])
        self.gates = nn.ModuleList([nn.Linear(*pair) for pair in pairs])

    def forward(self, x: Tensor) -> Tensor:
        """Map features [N, F] to energies [N]."""
        value = gate = x
        for linear_v, linear_g in zip(self.values[:-1], self.gates[:-1], strict=True):
            value, gate = functional.silu(linear_v(value)), functional.silu(linear_g(gate))
        energies: Tensor = self.values[-1](value) * torch.sigmoid(self.gates[-1](gate))
        return energies[:, 0]


HEAD_CLASSES: dict[str, type[nn.Module]] = {"scalar": ScalarHead, "gated": GatedHead}


class Readout(nn.Module):
    """The energy of each atom, from the invariants of its tensor."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.hidden_channels
        self.activation = ACTIVATIONS[config.activation] if config.readout_activation else None
        self.norm = nn.LayerNorm(3 * channels)
        self.linear = nn.Linear(3 * channels, channels)
        self.head = HEAD_CLASSES[config.head](config)

    def forward(self, x: Tensor) -> Tensor:
        """Map tensors x [9, N, F] to energies [N], in units of ``std``."""
        invariants = irrep_norms(x).movedim(0, 1).flatten(1)  # [N, 3 F]
        hidden = self.linear(self.norm(invariants))
        if self.activation is not None:
            hidden = self.activation(hidden)
        energies: Tensor = self.head(hidden)
        return energies
