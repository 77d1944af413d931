"""Float32 values as sums of two parts in lower precision, multiplied on tensor cores.

    "tf32x3"            x = high + low              TF32
    "halves"            x = (high + low) unit       float16, one power of two per row or column
    "fixed_halves"      x = (high + low) / 2^8      float16, for weights
    "shifted_halves"    x = high + low / 2^11       float16

Each part has eleven bits, so their sum lacks at most the last two of a float32 value. Three
products of parts replace one product, because the product of both low parts is below its precision.
Halves take half the time of TF32 and work on GPUs without it, but have the range of float16: values
up to 65504 as "shifted_halves", and up to 255 as "fixed_halves". With units, there is no limit. The
low parts of small values would leave this range, so either they alone are scaled, and the products
with them are added up separately, or all values are scaled.

`mlff_triton.kernels.numerics.product` multiplies by these operands.

Source: H. Ootomo, R. Yokota, "Recovering single precision accuracy from Tensor Cores while
surpassing the FP32 theoretical peak performance", https://doi.org/10.1177/10943420221090256.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.numerics.rounding import loss_of

SHIFT = 2.0**11
"""Factor of the low parts of "shifted_halves"."""

WEIGHT_SCALE = 2.0**8
"""Factor of both parts of "fixed_halves", and so of sums of products with them."""

EXPONENT = 14
"""Exponent of the largest value of each row of "halves", divided by its unit."""

_SCALES = {"fixed_halves": (WEIGHT_SCALE, 1.0), "shifted_halves": (1.0, SHIFT)}


class SplitOperand(NamedTuple):
    """Rows of values as "halves", ``(high + low) unit``.

    Attributes
    ----------
    high, low : float16 [..., C]
        High and low parts of scaled values, of which the largest is between 2^14 and 2^15.
    unit : float32 [...]
        Power of two that scaled rows are multiplied by.
    """

    high: Tensor
    low: Tensor
    unit: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> SplitOperand:
        """Split rows of float32 or float64 values."""
        peak = rows.abs().amax(-1).double().clamp(min=2.0**-100)
        unit = torch.exp2(torch.floor(torch.log2(peak)) - EXPONENT)
        high, low = _halves(rows.double() / unit[..., None])
        return cls(high, low, unit.float())

    def joined(self) -> Tensor:
        """Return the values in float64."""
        return (self.high.double() + self.low.double()) * self.unit[..., None].double()


class SplitWeight(NamedTuple):
    """Linear map ``y = x weight^T``, split for "tf32x3".

    Attributes
    ----------
    weight : [..., out, in]
        float32 or float64.
    high, low : [..., out, in]
        TF32 values whose sum exceeds the weight by the fraction that tensor cores round off, if it
        is known for the device. In float64, both are the weight itself.
    tf32 : bool
        If True, products use the high parts only.
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
        low = round_to_tf32(weight - high + loss_of(weight).tf32_sum * weight)
        return cls(weight, high, low, tf32)

    @property
    def transposed(self) -> SplitWeight:
        """The adjoint map, ``y = x weight``."""
        return SplitWeight.of(self.weight.mT, self.tf32)


def split_weight(weight: Tensor, scheme: str) -> Tensor:
    """Split a weight [..., K, N] into its high and its low parts, float16 [..., 2, K, N].

    Parameters
    ----------
    weight : [..., K, N]
        float32 or float64.
    scheme : {"fixed_halves", "shifted_halves"}
        Units of the parts.

    Raises
    ------
    InputError
        If an element is beyond the range of the scheme, or not finite.
    """
    scale, shift = _SCALES[scheme]
    high, low = _halves(weight.double() * scale, shift)
    if not high.isfinite().all():
        raise InputError(
            f"a weight is not finite or too large to be split: {float(weight.abs().max()):.3g}"
        )
    return torch.stack([high, low], -3).contiguous()


def round_to_tf32(x: Tensor) -> Tensor:
    """Round float32 values to the nearest values whose mantissa is thirteen bits shorter."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _halves(x: Tensor, shift: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return high and shifted low parts of float64 values."""
    high = x.half()
    return high, ((x - high.double()) * shift).half()
