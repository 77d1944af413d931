"""Biases of attention in all layers of a transformer, computed together from the same pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs.protocol import PairOperators
from mlff_triton.kernels.types.norm import Norm


class BiasMaps(NamedTuple):
    """Maps of pairs to the biases of L layers.

    Attributes
    ----------
    norm : Norm
        Normalization of the pairs.
    weight : [L H, P]
        Maps of normalized pairs to the biases of H heads, those of one layer above the next.
    shift : [L H] or None
        Added to the biases.
    heads : int
        Number H of heads.
    """

    norm: Norm
    weight: Tensor
    shift: Tensor | None
    heads: int

    @classmethod
    def of(cls, norms: Sequence[Norm], maps: Sequence[Tensor]) -> BiasMaps:
        """Fold the layers' normalizations into their maps [H, P], in float64.

        Raises
        ------
        InputError
            If normalizations add different values to variances, or only some have shifts.
        """
        scales, shifts, eps = zip(*norms, strict=True)
        if len(set(eps)) > 1 or len({shift is None for shift in shifts}) > 1:
            raise InputError("the normalizations of pairs are not alike")
        folded = [weight * scale for weight, scale in zip(maps, scales, strict=True)]
        norm, shift = (torch.ones_like(scales[0]), None, eps[0]), None
        if shifts[0] is not None:
            shift = torch.cat([weight @ each for weight, each in zip(maps, shifts, strict=True)])
        return cls(norm, torch.cat(folded), shift, len(maps[0]))

    def joined(self, operators: PairOperators, z: Tensor) -> Tensor:
        """Compute the biases [B, L H, N, M] of all layers from pairs [B, N, M, P]."""
        return operators.pair_biases(z.contiguous(), self.norm, self.weight, self.shift)

    def biases(self, operators: PairOperators, z: Tensor) -> tuple[Tensor, ...]:
        """Compute the biases [B, H, N, M] of each layer from pairs [B, N, M, P]."""
        parts = self.joined(operators, z).split(self.heads, 1)
        return tuple(part.contiguous() for part in parts)
