"""Rows of edges, and blocks of them that stay in a processor's cache.

The edges that an atom receives fill consecutive rows, in the order of their slots. The first is its
edge to itself.
"""

from __future__ import annotations

import torch

from mlff_triton.kernels.types.edge_rows import EdgeRows, RowPartners
from mlff_triton.kernels.types.edges import Edges

ROWS = 384
"""Rows of a block, unless those of one atom are more."""


def edge_rows(edges: Edges) -> EdgeRows:
    """Number the edges of all atoms, and find the opposite of each."""
    ends = (edges.slot_end - edges.slot_begin + 1).cumsum(0)
    slots, receivers = edges.live()
    rows = torch.arange(len(slots)) + receivers + 1
    everyone, n_rows = torch.arange(len(ends)), len(slots) + len(ends)
    own = ends - (edges.slot_end - edges.slot_begin) - 1
    origins = edges.origin[slots].long()
    row_of = torch.zeros(len(edges.senders), dtype=torch.int64)
    row_of[origins] = rows
    reverse = edges.reverse[origins].long()

    def in_rows(of_edges: torch.Tensor, of_atoms: torch.Tensor) -> torch.Tensor:
        out = torch.full((n_rows,), -1)
        out[rows], out[own] = of_edges, of_atoms
        return out

    nothing = torch.full_like(everyone, -1)
    partners = RowPartners(
        atoms=in_rows(edges.senders[slots].long(), everyone),
        slots=in_rows(slots, nothing),
        opposite_slots=in_rows(reverse, nothing),
        opposites=in_rows(row_of[reverse], own),
    )
    return EdgeRows(ends, partners=partners)


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
