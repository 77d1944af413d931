"""Partial charges of atoms, from their tensors and the total charge of their system.

This is neutral charge equilibration as in AIMNet-NSE (https://doi.org/10.1038/s41467-021-24904-0),
in the form of TorchMD-NET's ``ChargePredict``, with a least weight of each atom for new models.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mlff_triton.model.activations import ACTIVATIONS
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.irreps import irrep_norms

EPSILON = 1e-6  # for systems in which no atom takes charge


class ChargeNetwork(nn.Module):
    """A network that predicts the charge of each atom, and its softness.

    Its inputs are the invariants ``I``, ``|A|^2`` and ``|S|^2`` of the atom's tensor.
    """

    def __init__(self, config: TensorNet2Config) -> None:
        super().__init__()
        channels = config.hidden_channels
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        self.norm = nn.LayerNorm(3 * channels)
        self.linears = nn.ModuleList(
            [
                nn.Linear(3 * channels, channels),
                nn.Linear(channels, channels),
                nn.Linear(channels, 2 * config.charge_channels),
            ]
        )

    def forward(self, x: Tensor, charge: Tensor, batch: Tensor, n_systems: int) -> Tensor:
        """Predict charges.

        Parameters
        ----------
        x : [9, N, F]
            Tensors of the atoms.
        charge : [N, 1]
            Total charge of each atom's system.
        batch : int64 [N]
            System of each atom.
        n_systems : int
            Number of systems, or more.

        Returns
        -------
        [N, Q]
            Charges of each atom, which add up to the total charge in every channel.
        """
        values = self.norm(torch.cat([x[0], *irrep_norms(x)[1:]], dim=1))
        first, second, last = self.linears
        values = self.activation(second(self.activation(first(values))))
        charges, softness = last(values).chunk(2, dim=1)
        floor = self.config.softness_floor
        return equilibrate(charges, softness, charge, batch, n_systems, floor)


def equilibrate(
    charges: Tensor,
    softness: Tensor,
    total: Tensor,
    batch: Tensor,
    n_systems: int,
    floor: float = 0.0,
) -> Tensor:
    """Distribute the missing part of the total charge over the atoms of each system.

    Each atom takes ``w / (sum w + 1e-6)`` of it, where ``w = f^2 + floor``, and ``f`` is its
    softness.

    Parameters
    ----------
    charges, softness : [N, Q]
        Charges, and how easily each atom changes them.
    total : [N, 1]
        Total charge of each atom's system.
    batch : int64 [N]
        System of each atom.
    n_systems : int
        Number of systems, or more.
    floor : float
        Weight of an atom whose softness is 0.

    Returns
    -------
    [N, Q]

    Examples
    --------
    >>> equal = torch.zeros(4, 1), torch.ones(4, 1)
    >>> equilibrate(*equal, torch.ones(4, 1), torch.tensor([0, 0, 0, 0]), 1).flatten()
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def sums(values: Tensor) -> Tensor:
        zeros = values.new_zeros(n_systems, values.shape[1])
        return zeros.index_add(0, batch, values).index_select(0, batch)

    weights = softness**2 + floor
    return charges + weights / (sums(weights) + EPSILON) * (total - sums(charges))
