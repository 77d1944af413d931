"""Network that predicts the charges of TensorNet2 from invariants of tensors."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from mlff_triton.kernels.numerics.split import SplitWeight

FEWEST = 16
"""Fewest rows of a matrix product on tensor cores."""


class ChargeNetwork(NamedTuple):
    """Layer norm, and three linear maps with an activation between them.

    Attributes
    ----------
    gain, shift : [3 F]
        Weights of the layer norm.
    first, second, third : SplitWeight [F, 3 F], [F, F], [P, F]
        Linear maps. P is 2 Q rounded up to a power of two, 16 or more. Additional rows are zero.
    first_bias, second_bias, third_bias : [F], [F], [P]
        Their biases.
    first_adjoint, second_adjoint, third_adjoint : SplitWeight [3 F, F], [F, F], [F, P]
        Their adjoints.
    n_outputs : int
        2 Q: charges and weights of each atom.
    activation : str
        Name of the activation.
    """

    gain: Tensor
    shift: Tensor
    first: SplitWeight
    first_bias: Tensor
    second: SplitWeight
    second_bias: Tensor
    third: SplitWeight
    third_bias: Tensor
    first_adjoint: SplitWeight
    second_adjoint: SplitWeight
    third_adjoint: SplitWeight
    n_outputs: int
    activation: str

    @classmethod
    def of(
        cls,
        norm: tuple[Tensor, Tensor],
        first: tuple[Tensor, Tensor],
        second: tuple[Tensor, Tensor],
        third: tuple[Tensor, Tensor],
        activation: str,
        *,
        tf32: bool = False,
    ) -> ChargeNetwork:
        """Arrange the weights of a network.

        Parameters
        ----------
        norm : ([3 F], [3 F])
            Gain and shift of the layer norm.
        first, second, third : ([F, 3 F], [F]), ([F, F], [F]), ([2 Q, F], [2 Q])
            Weight and bias of the maps, as in `torch.nn.Linear`.
        activation : str
            Name of the activation.
        tf32 : bool
            If True, matrix products of float32 values take one product in TF32.
        """
        n_outputs = len(third[1])
        missing = max(FEWEST, 1 << (n_outputs - 1).bit_length()) - n_outputs
        maps = [
            SplitWeight.of(weight, tf32)
            for weight in (first[0], second[0], functional.pad(third[0], (0, 0, 0, missing)))
        ]
        return cls(
            gain=norm[0],
            shift=norm[1],
            first=maps[0],
            first_bias=first[1],
            second=maps[1],
            second_bias=second[1],
            third=maps[2],
            third_bias=functional.pad(third[1], (0, missing)),
            first_adjoint=maps[0].transposed,
            second_adjoint=maps[1].transposed,
            third_adjoint=maps[2].transposed,
            n_outputs=n_outputs,
            activation=activation,
        )
