"""Rows of edges, and blocks of them that stay in a processor's cache.

The edges that an atom receives fill consecutive rows, in the order of their slots. The first is its
edge to itself.
"""

from __future__ import annotations

import torch

from mlff_triton.kernels.types.edge_rows import EdgeRows
from mlff_triton.kernels.types.edges import Edges

ROWS = 384
"""Rows of a block, unless those of one atom are more."""


def edge_rows(edges: Edges) -> EdgeRows:
    """Number the edges of all atoms, and find the opposite of each."""
    ends = (edges.slot_end - edges.slot_begin + 1).cumsum(0)
    slots, receivers = edges.live()
    rows = torch.arange(len(slots)) + receivers + 1
    row_of = torch.zeros(len(edges.senders), dtype=torch.int64)
    origins = edges.origin[slots].long()
    row_of[origins] = rows
    opposites = torch.arange(len(slots) + len(ends))
    opposites[rows] = row_of[edges.reverse[origins].long()]
    return EdgeRows(ends, opposites=opposites)


def blocks(rows: EdgeRows) -> list[tuple[int, int, int, int]]:
    """Return blocks of atoms: the first, the one after the last, and the same of their rows."""
    ends = rows.ends.numpy()
    found, first, begin = [], 0, 0
    while first < len(ends):
        last = max(first + 1, int(ends.searchsorted(begin + ROWS, side="right")))
        end = int(ends[last - 1])
        found.append((first, last, begin, end))
        first, begin = last, end
    return found
