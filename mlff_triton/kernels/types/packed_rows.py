"""PackedRows rows of tokens: the kept tokens of a padded batch, without the padding."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PackedRows(NamedTuple):
    """Where the kept tokens of a padded batch [B, L] lie among packed rows.

    Attributes
    ----------
    token : int32 [T]
        Number b L + l of each row's token.
    place : int32 [T]
        Its place l in the padded sequence.
    row_ptr : int32 [B + 1]
        Sequence ``b`` holds the rows ``row_ptr[b]:row_ptr[b + 1]``.
    row_of : int32 [B L]
        Row of each token, -1 for those that have none.
    """

    token: Tensor
    place: Tensor
    row_ptr: Tensor
    row_of: Tensor
