"""Rows of float32 values as sums of two float16 values, for products on tensor cores.

A float32 value is, up to its last two bits, the sum of two float16 values of eleven bits each. Each
row is first scaled by a power of two, so that its largest value is between 2^14 and 2^15: neither
large values nor low halves leave the range of float16. Products of three pairs of halves are as
exact as products in float32 for most purposes, and much faster on tensor cores.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EXPONENT = 14
"""Exponent of the largest value of a scaled row."""


class SplitRows(NamedTuple):
    """Rows of values, ``(high + low) unit``.

    Attributes
    ----------
    high, low : float16 [..., C]
        High and low halves of scaled values.
    unit : float32 [...]
        Power of two that scaled rows are multiplied by.
    """

    high: Tensor
    low: Tensor
    unit: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> SplitRows:
        """Split rows of float32 or float64 values."""
        peak = rows.abs().amax(-1).double().clamp(min=2.0**-100)
        unit = torch.exp2(torch.floor(torch.log2(peak)) - EXPONENT)
        scaled = rows.double() / unit[..., None]
        high = scaled.half()
        return cls(high, (scaled - high.double()).half(), unit.float())

    def joined(self) -> Tensor:
        """Return the values in float64."""
        return (self.high.double() + self.low.double()) * self.unit[..., None].double()
