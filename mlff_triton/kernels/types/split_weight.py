"""Weights of linear maps, split for tensor cores.

A float32 number is the sum of two TF32 numbers of eleven bits each, but for its last bits. Three
products of such halves are as exact as one in float32, and tensor cores make them much faster. Both
halves of the weights are worked out once; kernels split the other operand as they go.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROUNDED_OFF = 0.73 * 2.0**-23  # of sums of 32 products, relative, see `kernels._tiles.multiply`


class SplitWeight(NamedTuple):
    """A linear map ``y = x weight^T``.

    Attributes
    ----------
    weight : [..., out, in]
        float32 or float64.
    high, low : [..., out, in]
        TF32 numbers whose sum is the weight, and 0.73 units in the last place more, which tensor
        cores round off; for float64 the weight itself, and nothing of use.
    tf32 : bool
        Whether the high halves alone will do.
    """

    weight: Tensor
    high: Tensor
    low: Tensor
    tf32: bool = False

    @classmethod
    def of(cls, weight: Tensor, tf32: bool = False) -> SplitWeight:
        """Split a weight."""
        weight = weight.contiguous()
        if weight.dtype != torch.float32:
            return cls(weight, weight, weight)
        high = round_to_tf32(weight)
        return cls(weight, high, round_to_tf32(weight - high + ROUNDED_OFF * weight), tf32)

    @property
    def transposed(self) -> SplitWeight:
        """The adjoint: ``y = x weight``."""
        return SplitWeight.of(self.weight.mT, self.tf32)


def round_to_tf32(x: Tensor) -> Tensor:
    """The nearest numbers whose mantissa ends thirteen bits early."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
