"""Weights of a linear map."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Linear(NamedTuple):
    """A linear map of rows, ``x weight + bias``.

    Attributes
    ----------
    weight : [inputs, outputs], or float16 [2, inputs, outputs]
        Transposed weight, contiguous; halves for kernels, see `mlff_triton.kernels.numerics.split`.
    bias : [outputs]
        Bias.
    """

    weight: Tensor
    bias: Tensor
