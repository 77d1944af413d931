"""The largest logit of each row, and its index."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class TopLogit(NamedTuple):
    """Largest logit of each row, and its index.

    Attributes
    ----------
    index : int64 [...]
        Smallest index that has the largest logit, or index of the first NaN.
    logit : [...]
        The logit at that index.
    """

    index: Tensor  # type: ignore[assignment] # hides a method of tuple
    logit: Tensor


def largest(logits: Tensor) -> TopLogit:
    """Return the largest of logits [..., V] and its index."""
    logit, index = logits.max(-1)
    return TopLogit(index, logit)
