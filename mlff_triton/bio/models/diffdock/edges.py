"""Edges in the order of their receivers, as the convolution reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Edges(NamedTuple):
    """Edges from one set of nodes to another, sorted by receivers.

    Attributes
    ----------
    order : int64 [E]
        Index of each edge before sorting.
    receivers, senders : int64 [E]
        Nodes.
    row_ptr : int64 [N + 1]
        The edges of receiver i are ``row_ptr[i]:row_ptr[i + 1]``.
    are_valid : bool []
        False if any index was out of range. The nearest one in range replaces it.
    """

    order: Tensor
    receivers: Tensor
    senders: Tensor
    row_ptr: Tensor
    are_valid: Tensor

    @classmethod
    def of(cls, receivers: Tensor, senders: Tensor, n_receivers: int, n_senders: int) -> Edges:
        """Sort edges by receivers, those of one receiver in their present order."""
        wrong = (
            (receivers < 0) | (receivers >= n_receivers) | (senders < 0) | (senders >= n_senders)
        )
        are_valid = ~wrong.any()
        receivers, order = receivers.clamp(0, n_receivers - 1).sort(stable=True)
        starts = torch.arange(n_receivers + 1, device=receivers.device)
        row_ptr = torch.searchsorted(receivers, starts)
        senders = senders.clamp(0, n_senders - 1)[order]
        return cls(order, receivers, senders, row_ptr, are_valid)

    @property
    def size(self) -> int:
        """Number of edges."""
        return len(self.receivers)


def mean_factors(groups: Sequence[Edges], dtype: torch.dtype, *, mean: bool = True) -> list[Tensor]:
    """Return factors [E, 1] by which sums over several groups of edges become means.

    They are 1 unless ``mean``, and NaN for all edges of a group that is not valid.
    """
    counts = torch.stack([group.row_ptr.diff() for group in groups]).sum(0)
    each = counts.to(dtype).reciprocal() if mean else torch.ones_like(counts, dtype=dtype)
    return [
        torch.where(group.are_valid, each[group.receivers], torch.nan)[:, None] for group in groups
    ]
