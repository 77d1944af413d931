"""Packing of padded batches of hidden states, so that padding is not computed."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.transformer.types import PackedRows


def find_rows(kept: Tensor) -> PackedRows:
    """Find the packed rows of the tokens that a mask keeps.

    On a GPU, counting the tokens would make the host wait. So there are always T = B L rows on a
    GPU, and kernels skip the rows from ``row_ptr[-1]`` on.

    Parameters
    ----------
    kept : bool [B, L]
        True for tokens, False for padding.

    Returns
    -------
    PackedRows
        Layout of the packed rows.
    """
    batch, length = kept.shape
    row_ptr = torch.zeros(batch + 1, dtype=torch.int32, device=kept.device)
    count = kept.flatten().cumsum(0, dtype=torch.int32)  # tokens up to and including each
    if length:
        row_ptr[1:] = count[length - 1 :: length]
    n_rows = int(row_ptr[-1]) if kept.device.type == "cpu" else kept.numel()
    numbers = torch.arange(1, n_rows + 1, dtype=torch.int32, device=kept.device)
    # Without its last element, the search ends at the last token for rows that are not in use.
    token = torch.searchsorted(count[:-1], numbers, out_int32=True)
    row_of = torch.where(kept.flatten(), count - 1, -1)
    return PackedRows(token, token % max(1, length), row_ptr, row_of)


def pack(values: Tensor, packed: PackedRows) -> Tensor:
    """Return the rows [T, ...] of the tokens of a padded batch [B, L, ...]."""
    return values.flatten(0, 1).index_select(0, packed.token)


def unpack(rows: Tensor, packed: PackedRows, shape: tuple[int, int]) -> Tensor:
    """Return rows [T, ...] as a padded batch [B, L, ...] of a shape (B, L), zero for padding."""
    if not len(rows):
        return rows.new_zeros(*shape, *rows.shape[1:])
    row_of = packed.row_of
    padding = (row_of < 0).view(-1, *(1,) * (rows.dim() - 1))
    found = rows.index_select(0, row_of.clamp(min=0)).masked_fill_(padding, 0)
    return found.view(*shape, *rows.shape[1:])
