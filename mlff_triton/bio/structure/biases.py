"""Biases of attention in all layers of a transformer, computed together from the same pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.structure.operators import Operators
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.norm import Norm


class BiasMaps(NamedTuple):
    """Maps of pairs to the biases of L layers.

    Attributes
    ----------
    norm : Norm
        Normalization of the pairs.
    weight : [L H, P]
        Maps of normalized pairs to the biases of H heads, those of one layer above the next.
    heads : int
        Number H of heads.
    """

    norm: Norm
    weight: Tensor
    heads: int

    @classmethod
    def of(cls, norms: Sequence[Norm], maps: Sequence[Tensor]) -> BiasMaps:
        """Fold the scales of the layers' normalizations into their maps [H, P], in float64.

        Raises
        ------
        InputError
            If normalizations have shifts, or add different values to variances.
        """
        scales, shifts, eps = zip(*norms, strict=True)
        if any(shift is not None for shift in shifts) or len(set(eps)) > 1:
            raise InputError("the normalizations of pairs are not alike, or have shifts")
        folded = [weight * scale for weight, scale in zip(maps, scales, strict=True)]
        norm = torch.ones_like(scales[0]), None, eps[0]
        return cls(norm, torch.cat(folded), len(maps[0]))

    def biases(self, operators: Operators, z: Tensor) -> tuple[Tensor, ...]:
        """Compute the biases [B, H, N, M] of each layer from pairs [B, N, M, P]."""
        biases = operators.pair_biases(z.contiguous(), self.norm, self.weight)
        return tuple(part.contiguous() for part in biases.split(self.heads, 1))
