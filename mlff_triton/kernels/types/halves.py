"""Weights of linear maps as sums of two values in half precision, for tensor cores.

A float32 value of moderate size is, up to its last two bits, the sum of two float16 values of
eleven bits each. Three products of these halves are as exact as one in float32 for most purposes,
take half the time of products in TF32, and work on GPUs without TF32.

Low halves of weights would fall below the range of float16. Either low halves alone are scaled, and
the products with them are summed apart, or whole weights are scaled, and one sum suffices. Then the
low halves of the values that are multiplied have an error of at most 3e-8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.errors import InputError

SCALE = 2.0**11
"""Factor of the low halves alone."""

WEIGHT_SCALE = 2.0**8
"""Factor of whole weights, and so of the sums of products with them."""


def split_halves(weight: Tensor) -> Tensor:
    """Split a weight [..., K, N] into high and scaled low halves, float16 [..., 2, K, N].

    Raises
    ------
    InputError
        If an element is larger than 65504, the largest value of float16.
    """
    return _split(weight, 1.0, SCALE)


def split_scaled_halves(weight: Tensor) -> Tensor:
    """Scale a weight [..., K, N] and split it into high and low halves, float16 [..., 2, K, N].

    Raises
    ------
    InputError
        If an element is larger than 255, and the range of float16 does not suffice.
    """
    return _split(weight, WEIGHT_SCALE, 1.0)


def _split(weight: Tensor, scale: float, low_scale: float) -> Tensor:
    """Split a scaled weight into high halves and low ones, which are scaled once more."""
    scaled = weight.double() * scale
    high = scaled.half()
    if not high.isfinite().all():
        raise InputError(
            f"a weight is not finite or too large to be split: {float(weight.abs().max()):.3g}"
        )
    low = ((scaled - high.double()) * low_scale).half()
    return torch.stack([high, low], -3).contiguous()
