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
    """TorchMD-NET's ``Scalar`` output network, with layers F -> F/2 (-> F/2 ...) -> 1.

    Attributes
    ----------
    last_channels : int
        Number of last hidden values, H.
    """

    def __init__(self, config: TensorNetConfig, hidden_layers: int = 0) -> None:
        super().__init__()
        channels = config.hidden_channels
        half = channels // 2
        self.activation = ACTIVATIONS[config.activation]
        self.linear1 = nn.Linear(channels, half)
        self.hidden = nn.ModuleList([nn.Linear(half, half) for _ in range(hidden_layers)])
        self.linear2 = nn.Linear(half, 1)
        self.last_channels = half

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map features [N, F] to energies [N] and last hidden values [N, F/2]."""
        x = self.activation(self.linear1(x))
        for linear in self.hidden:
            x = self.activation(linear(x))
        energies: Tensor = self.linear2(x)
        return energies[:, 0], x


class GatedHead(nn.Module):
    """MatGL's ``WeightedReadOut``: two networks F -> F -> F -> F -> 1, one gating the other.

    Attributes
    ----------
    last_channels : int
        Number of last hidden values, H.
    """

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        pairs = list(pairwise([config.hidden_channels] * 4 + [1]))
        self.values = nn.ModuleList([nn.Linear(*pair) for pair in pairs])
        self.gates = nn.ModuleList([nn.Linear(*pair) for pair in pairs])
        self.last_channels = config.hidden_channels

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map features [N, F] to energies [N] and gated last hidden values [N, F].

        Energies are a linear map of these hidden values, apart from a bias.
        """
        value = gate = x
        for linear_v, linear_g in zip(self.values[:-1], self.gates[:-1], strict=True):
            value, gate = functional.silu(linear_v(value)), functional.silu(linear_g(gate))
        weight = torch.sigmoid(self.gates[-1](gate))
        energies: Tensor = self.values[-1](value) * weight
        return energies[:, 0], weight * value


HEAD_CLASSES: dict[str, type[ScalarHead | GatedHead]] = {"scalar": ScalarHead, "gated": GatedHead}


class Readout(nn.Module):
    """The energy of each atom, and perhaps its uncertainty, from the invariants of its tensor.

    Attributes
    ----------
    uncertainty : [K, H] or None
        Map U of the last hidden values h of an atom, in eV/Å, if the model knows its uncertainty:
        |U h| is the expected error of the force on the atom. In the Laplace approximation of the
        last layer (https://doi.org/10.1088/2632-2153/ad805f), ``U^T U`` is a multiple of
        ``(sum h h^T + s^2)^-1``, with the sum over atoms of the training set. With several last
        layers, the rows of U are multiples of the differences of their weights from the mean.
    uncertainty_limit : float64 [] or None
        Uncertainty in eV/Å above which atoms are unlike those that the model was made for.
    """

    head: ScalarHead | GatedHead
    uncertainty: Tensor | None
    uncertainty_limit: Tensor | None

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.hidden_channels
        self.config = config
        self.activation = ACTIVATIONS[config.activation] if config.readout_activation else None
        self.norm = nn.LayerNorm(3 * channels)
        self.linear = nn.Linear(3 * channels, channels)
        self.head = HEAD_CLASSES[config.head](config)
        self.register_buffer("uncertainty", None)
        self.register_buffer("uncertainty_limit", None)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map tensors x [9, N, F] to energies [N], in units of ``std``, and hidden values [N, H].

        The last hidden values are the inputs of the last linear map of the head.
        """
        invariants = irrep_norms(x).movedim(0, 1).flatten(1)  # [N, 3 F]
        hidden = self.linear(self.norm(invariants))
        if self.activation is not None:
            hidden = self.activation(hidden)
        found: tuple[Tensor, Tensor] = self.head(hidden)
        return found

    def uncertainty_of(self, hidden: Tensor) -> Tensor | None:
        """Compute the uncertainty of each atom, [N], eV/Å, from its last hidden values [N, H].

        It carries no gradients. None if the model does not know its uncertainty.
        """
        if self.uncertainty is None:
            return None
        norms: Tensor = torch.linalg.vector_norm(hidden.detach() @ self.uncertainty.T, dim=1)
        return norms
