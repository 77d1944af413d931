"""Rows of edges, and blocks of them that stay in a processor's cache.

The edges that an atom receives fill consecutive rows, in the order of their slots. The first is its
edge to itself.
"""

from __future__ import annotations

import torch

from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.threads import n_threads
from mlff_triton.kernels.types.edge_rows import EdgeRows, RowPartners
from mlff_triton.kernels.types.edges import Edges

ROWS = 384
"""Rows of a block, and a few more, as those of an atom are in one block."""
FEWEST_ROWS = 64
"""Rows that are worth a thread."""


def edge_rows(edges: Edges) -> EdgeRows:
    """Number the edges of all atoms, and find the opposite of each."""
    ends = (edges.slot_end - edges.slot_begin + 1).cumsum(0)
    n_atoms, n_rows = len(ends), int(ends[-1]) if len(ends) else 0
    row_of = torch.zeros(len(edges.senders), dtype=torch.int64)
    partners = RowPartners(*torch.empty(4, n_rows, dtype=torch.int64))
    slots = edges.slot_begin, edges.slot_end, edges.senders, edges.origin
    run(_number_rows, n_atoms, *slots, ends, row_of, partners.atoms, partners.slots)
    opposites = partners.opposite_slots, partners.opposites
    given = edges.origin, edges.reverse, ends, row_of, partners.slots, *opposites
    run(_find_opposites, n_atoms, *given)
    return EdgeRows(ends, partners=partners)


def blocks(rows: EdgeRows) -> list[tuple[int, int, int, int]]:
    """Return blocks of atoms: the first, the one after the last, and the same of their rows.

    All threads get about as many rows. Results of an atom do not depend on its block.
    """
    ends, threads = rows.ends.numpy(), n_threads()
    n_rows = int(ends[-1]) if len(ends) else 0
    count = -(-n_rows // (ROWS * threads)) * threads
    count = min(count, max(1, n_rows // FEWEST_ROWS))
    inner = ends.searchsorted([n_rows * k // count for k in range(1, count)]) + 1
    bounds = sorted({0, *inner.clip(max=len(ends)).tolist(), len(ends)})
    starts = [0, *ends[[last - 1 for last in bounds[1:]]].tolist()]
    return list(zip(bounds[:-1], bounds[1:], starts[:-1], starts[1:], strict=True))


@loop
def _number_rows(slot_begin, slot_end, senders, origin, ends, row_of, atoms, slots, first, last):
    for i in range(first, last):
        row = ends[i - 1] if i > 0 else 0
        atoms[row], slots[row] = i, -1
        for e in range(slot_begin[i], slot_end[i]):
            row += 1
            atoms[row], slots[row] = senders[e], e
            row_of[origin[e]] = row


@loop
def _find_opposites(origin, reverse, ends, row_of, slots, opposite_slots, opposites, first, last):
    for i in range(first, last):
        start = ends[i - 1] if i > 0 else 0
        opposite_slots[start], opposites[start] = -1, start
        for row in range(start + 1, ends[i]):
            k = reverse[origin[slots[row]]]
            opposite_slots[row], opposites[row] = k, row_of[k]
