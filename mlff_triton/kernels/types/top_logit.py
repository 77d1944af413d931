"""The largest logit of every row, and its index."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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
