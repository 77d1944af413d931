"""Weights of linear maps, split for tensor cores.

A float32 number is the sum of two TF32 numbers of eleven bits each, but for its last bits. Three
products of such halves are as exact as one in float32, and tensor cores make them much faster. Both
halves of the weights are worked out once; kernels split the other operand as they go.

Tensor cores round towards zero (H. Ootomo and R. Yokota, https://arxiv.org/abs/2203.03341): each
time that eight products join a sum, it loses 0.36 * 2^-23 of itself on average, half of its last
bit, whose weight is 0.72 * 2^-23 in the mean of all mantissas. The k-th of n such sums is on
average k / n of what they become, so a block of 32 products ends up 0.36 * (1/4 + 2/4 + 3/4 + 1)
* 2^-23 too small. One product would not show it, but the errors of a dozen maps in a row all point
the same way. The halves therefore add up to a weight larger by that.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LOSS = 0.9 * 2.0**-23
"""What tensor cores lose of a sum of 32 products by rounding towards zero, on average."""


class Map(NamedTuple):
    """A linear map ``y = x weight^T``.

    Attributes
    ----------
    weight : [..., out, in]
        float32 or float64.
    high, low : [..., out, in]
        TF32 numbers whose sum is the weight times ``1 + LOSS``; for float64 the weight itself, and
        nothing of use.
    tf32 : bool
        Whether the high halves alone will do.
    """

    weight: Tensor
    high: Tensor
    low: Tensor
    tf32: bool = False

    @classmethod
    def of(cls, weight: Tensor, tf32: bool = False) -> Map:
        """Split a weight."""
        weight = weight.contiguous()
        if weight.dtype != torch.float32:
            return cls(weight, weight, weight)
        high = round_to_tf32(weight)
        rest = weight.double() * (1 + LOSS) - high.double()
        return cls(weight, high, round_to_tf32(rest.float()), tf32)

    @property
    def transposed(self) -> Map:
        """The adjoint: ``y = x weight``."""
        return Map.of(self.weight.mT, self.tf32)


def round_to_tf32(x: Tensor) -> Tensor:
    """The nearest numbers whose mantissa ends thirteen bits early."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
