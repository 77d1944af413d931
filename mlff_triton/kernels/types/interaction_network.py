"""Network of the edges in an interaction layer of TensorNet2.

Its input is the radial basis and the charges of both atoms. So its first map is a sum: a function
of the distance, which is tabulated with the bias, and one term per atom for each of its two roles.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mlff_triton.kernels.numerics.split import split_weight

FEWEST = 16
"""Fewest columns of a matrix product on tensor cores."""


class InteractionNetwork(NamedTuple):
    """Three linear maps with an activation after each, and the cosine cutoff.

    Weights are [outputs, inputs], as in `torch.nn.Linear`. If they have another, leading dimension
    of two, they are halves, see `mlff_triton.kernels.numerics.split`.

    Attributes
    ----------
    table : [K + 1, 3, F]
        Part of the first map that depends on the distance, with the bias: value, slope and secant
        at each knot.
    own : [F]
        The first map at distance 0, for the edge of each atom to itself.
    second, third : [2 F, F], [3 F, 2 F]
        The other maps.
    second_bias, third_bias : [2 F], [3 F]
        Their biases.
    second_adjoint, third_adjoint : [F, 2 F], [2 F, 3 F]
        Their adjoints.
    charges : [Q, 2, F]
        Part of the first map that acts on the charges of the receiver, and of the sender.
    receiver : [F, max(Q, 16)]
        The receiver's part, with columns of zeros up to a power of two.
    cutoffs : float64 [2]
        Lower and upper cutoff in Å.
    activation : str
        Name of the activation after each map.
    tf32 : bool
        If True, matrix products take one product in TF32.
    """

    table: Tensor
    own: Tensor
    second: Tensor
    second_bias: Tensor
    third: Tensor
    third_bias: Tensor
    second_adjoint: Tensor
    third_adjoint: Tensor
    charges: Tensor
    receiver: Tensor
    cutoffs: Tensor
    activation: str
    tf32: bool

    @classmethod
    def of(
        cls,
        table: Tensor,
        own: Tensor,
        charges: Tensor,
        second: tuple[Tensor, Tensor],
        third: tuple[Tensor, Tensor],
        cutoffs: tuple[float, float],
        activation: str,
        *,
        halves: bool = True,
        tf32: bool = False,
    ) -> InteractionNetwork:
        """Arrange the weights of a network.

        Parameters
        ----------
        table, own : [K + 1, 3, F], [F]
            Tabulated part of the first map.
        charges : [Q, 2, F]
            Parts of the first map that act on charges.
        second, third : ([2 F, F], [2 F]), ([3 F, 2 F], [3 F])
            Weight and bias of the other maps, as in `torch.nn.Linear`.
        cutoffs : (float, float)
            Lower and upper cutoff in Å.
        activation : str
            Name of the activation.
        halves : bool
            If True, split float32 weights into halves, with which matrix products are fastest.
        tf32 : bool
            If True, compute matrix products of float32 values in TF32. Weights are then not split.

        Raises
        ------
        InputError
            If a float32 weight is larger than 255 and cannot be split.
        """
        is_split = halves and not tf32 and table.dtype == torch.float32

        def prepared(weight: Tensor) -> Tensor:
            return split_weight(weight, "fixed_halves") if is_split else weight.contiguous()

        n_charges = len(charges)
        columns = max(FEWEST, 1 << (n_charges - 1).bit_length())
        receiver = functional.pad(charges[:, 0].T, (0, columns - n_charges))
        return cls(
            table=table.contiguous(),
            own=own.contiguous(),
            second=prepared(second[0]),
            second_bias=second[1],
            third=prepared(third[0]),
            third_bias=third[1],
            second_adjoint=prepared(second[0].T),
            third_adjoint=prepared(third[0].T),
            charges=charges.contiguous(),
            receiver=prepared(receiver),
            cutoffs=torch.tensor(cutoffs, dtype=torch.float64, device=table.device),
            activation=activation,
            tf32=tf32,
        )
