"""Weights of linear maps, split for tensor cores.

A float32 value is, up to its last bits, the sum of two TF32 values of eleven bits each. Three
products of these halves are as exact as one product in float32, and much faster on tensor cores.
Both halves of a weight are computed once. Kernels split the other operand as they load it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROUNDED_OFF = 0.73 * 2.0**-23
"""Relative loss of a sum of 32 products: see `mlff_triton.kernels.common.tiles.multiply`."""


class SplitWeight(NamedTuple):
    """Linear map ``y = x weight^T``.

    Attributes
    ----------
    weight : [..., out, in]
        float32 or float64.
    high, low : [..., out, in]
        TF32 values whose sum exceeds the weight by the 0.73 units in the last place that tensor
        cores round off. In float64, both are the weight itself.
    tf32 : bool
        If True, products use the high halves only.
    """

    weight: Tensor
    high: Tensor
    low: Tensor
    tf32: bool = False

    @classmethod
    def of(cls, weight: Tensor, tf32: bool = False) -> SplitWeight:
        """Split a weight into halves."""
        weight = weight.contiguous()
        if weight.dtype != torch.float32:
            return cls(weight, weight, weight)
        high = round_to_tf32(weight)
        return cls(weight, high, round_to_tf32(weight - high + ROUNDED_OFF * weight), tf32)

    @property
    def transposed(self) -> SplitWeight:
        """The adjoint map, ``y = x weight``."""
        return SplitWeight.of(self.weight.mT, self.tf32)


def round_to_tf32(x: Tensor) -> Tensor:
    """Round float32 values to the nearest values whose mantissa is thirteen bits shorter."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
