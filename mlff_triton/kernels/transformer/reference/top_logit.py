"""The largest logit of every row and where it is, in plain PyTorch.

    logit = max_v (norm(x) W^T + b)_v      index = the smallest v that has it

with the normalization left out if it is not given.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.transformer.reference.token_linear import Norm, token_linear


class TopLogit(NamedTuple):
    """The largest of logits, and which one it is.

    Attributes
    ----------
    index : int64 [...]
        The first of those that are equally large, or the first NaN.
    logit : [...]
        That one.
    """

    index: Tensor  # type: ignore[assignment] # hides a tuple's method
    logit: Tensor


def largest(logits: Tensor) -> TopLogit:
    """The largest of logits [..., V]."""
    logit, index = logits.max(-1)
    return TopLogit(index, logit)


def top_logit(x: Tensor, weight: Tensor, bias: Tensor, norm: Norm | None = None) -> TopLogit:
    """As `mlff_triton.kernels.transformer.top_logit.top_logit`, of all rows."""
    return largest(token_linear(x, weight, bias, norm))
