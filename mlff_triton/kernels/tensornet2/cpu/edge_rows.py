"""Rows of edges, and blocks of them that stay in a processor's cache.

The edges that an atom receives fill consecutive rows, in the order of their slots. The first is its
edge to itself.
"""

from __future__ import annotations

import numpy as np
import torch

from mlff_triton.kernels.common.cpu.compilation import allocating_loop, loop, run
from mlff_triton.kernels.common.cpu.threads import n_threads
from mlff_triton.kernels.types.edge_rows import EdgeRows, RowPartners
from mlff_triton.kernels.types.edges import Edges

ROWS = 384
"""Rows of a block, and a few more, as those of an atom are in one block."""
FEWEST_ROWS = 64
"""Rows that are worth a thread."""


def edge_rows(edges: Edges) -> EdgeRows:
    """Number the edges of all atoms, and sort them by sender."""
    ends = (edges.slot_end - edges.slot_begin + 1).cumsum(0)
    n_atoms, n_rows = len(ends), int(ends[-1]) if len(ends) else 0
    receivers, *fields = torch.empty(7, n_rows, dtype=torch.int64)
    partners = RowPartners(*fields)
    given = edges.slot_begin, edges.slot_end, edges.senders, edges.origin, edges.reverse, ends
    run(_number_rows, n_atoms, *given, *partners[:3], receivers)
    run(_sort_by_sender, n_rows, partners.atoms, receivers, *partners[3:], in_order=True)
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
def _number_rows(
    slot_begin, slot_end, senders, origin, reverse, ends, atoms, slots, opposite_slots, receivers,
    first, last,
):  # fmt: skip
    for i in range(first, last):
        row = ends[i - 1] if i > 0 else 0
        atoms[row], slots[row], opposite_slots[row], receivers[row] = i, -1, -1, i
        for e in range(slot_begin[i], slot_end[i]):
            row += 1
            atoms[row], slots[row], receivers[row] = senders[e], e, i
            opposite_slots[row] = reverse[origin[e]]


@allocating_loop
def _sort_by_sender(atoms, receivers, sent, sent_by, sent_to, first, last):
    """Sort rows, which keep their order if they have the same sender."""
    largest = 0
    for row in range(first, last):
        largest = max(largest, atoms[row])
    places = np.zeros(largest + 2, np.int64)
    for row in range(first, last):
        places[atoms[row] + 1] += 1
    for j in range(largest):
        places[j + 1] += places[j]
    for row in range(first, last):
        j = atoms[row]
        k = places[j]
        sent[k], sent_by[k], sent_to[k] = row, j, receivers[row]
        places[j] = k + 1
