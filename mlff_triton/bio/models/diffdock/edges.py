"""Edges in the order of their receivers, as required by the convolution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
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
        present = receivers.clamp(0, n_receivers - 1), senders.clamp(0, n_senders - 1)
        are_valid = ((receivers == present[0]) & (senders == present[1])).all()
        return cls._sorted(*present, n_receivers, are_valid)

    def reversed(self, n_senders: int) -> Edges:
        """Return the opposite edges; the order is that of these edges, before sorting."""
        return self._sorted(self.senders, self.receivers, n_senders, self.are_valid)

    @classmethod
    def _sorted(
        cls, receivers: Tensor, senders: Tensor, n_receivers: int, are_valid: Tensor
    ) -> Edges:
        receivers, order = receivers.sort(stable=True)
        starts = torch.arange(n_receivers + 1, device=receivers.device)
        row_ptr = torch.searchsorted(receivers, starts)
        return cls(order, receivers, senders[order], row_ptr, are_valid)

    @property
    def size(self) -> int:
        """Number of edges."""
        return len(self.receivers)


def mean_factors(groups: Sequence[Edges], dtype: torch.dtype, *, mean: bool = True) -> list[Tensor]:
    """Return factors [E, 1] by which sums over several groups of edges become means.

    They are 1 unless ``mean``, and NaN for all edges of a group that is not valid.
    """
    counts = reduce(torch.add, [group.row_ptr.diff() for group in groups]).to(dtype)
    each = counts.reciprocal() if mean else torch.ones_like(counts)
    return [
        torch.where(group.are_valid, each[group.receivers], torch.nan)[:, None] for group in groups
    ]
