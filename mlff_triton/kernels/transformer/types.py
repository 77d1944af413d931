"""Packed rows of tokens, and the largest logit of each row."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PackedRows(NamedTuple):
    """Mapping between the tokens of a padded batch [B, L] and packed rows.

    Attributes
    ----------
    token : int32 [T]
        Index b L + l of each row's token.
    position : int32 [T]
        Position l of each row's token in its padded sequence.
    row_ptr : int32 [B + 1]
        Sequence ``b`` holds the rows ``row_ptr[b]:row_ptr[b + 1]``.
    row_of : int32 [B L]
        Row of each token, -1 for tokens without a row.
    """

    token: Tensor
    position: Tensor
    row_ptr: Tensor
    row_of: Tensor


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
