"""Padded batches of tokens as packed rows, so that padding costs nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Which tokens of a padded batch [B, L] there are.

    On a GPU nobody knows how many there are without waiting for it. So there are always B L rows,
    of which those from ``row_ptr[-1]`` on mean nothing, and kernels leave them out.

    Attributes
    ----------
    token : int64 [T]
        Number of each row's token in the flattened batch.
    row_ptr : int32 [B + 1]
        Rows ``row_ptr[b]:row_ptr[b + 1]`` are those of sequence ``b``.
    shape : (int, int)
        B and L.
    dense : bool
        Whether there is no padding at all.
    """

    token: Tensor
    row_ptr: Tensor
    shape: tuple[int, int]
    dense: bool

    @classmethod
    def of(cls, mask: Tensor | None, shape: tuple[int, int], device: torch.device) -> Packing:
        """The tokens where a mask [B, L] is not zero; all without one."""
        batch, length = shape
        if mask is None:
            pointers = torch.arange(batch + 1, dtype=torch.int32, device=device) * length
            return cls(torch.arange(batch * length, device=device), pointers, shape, dense=True)
        kept = mask != 0
        row_ptr = torch.zeros(batch + 1, dtype=torch.int32, device=device)
        torch.cumsum(kept.sum(1), 0, dtype=torch.int32, out=row_ptr[1:])
        flat = kept.flatten()
        # A stable sort keeps the order of tokens, and does not wait for their number.
        token = torch.sort(flat, descending=True, stable=True).indices
        if device.type == "cpu":
            token = token[: int(row_ptr[-1])]
        return cls(token, row_ptr, shape, dense=False)

    def pack(self, values: Tensor) -> Tensor:
        """Values [B, L, ...] of the tokens' rows, [T, ...]."""
        flat = values.flatten(0, 1)
        return flat if self.dense else flat[self.token]

    def unpack(self, rows: Tensor) -> Tensor:
        """Rows [T, ...] as a batch [B, L, ...], zero where there is padding."""
        if self.dense:
            return rows.view(*self.shape, *rows.shape[1:])
        live = torch.arange(len(rows), device=rows.device) < self.row_ptr[-1]
        out = rows.new_zeros(self.shape[0] * self.shape[1], *rows.shape[1:])
        kept = torch.where(live.view(-1, *(1,) * (rows.dim() - 1)), rows, 0)
        out.index_copy_(0, self.token, kept)
        return out.view(*self.shape, *rows.shape[1:])
