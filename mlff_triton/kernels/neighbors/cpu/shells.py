"""Shells of atoms around the own atoms of a part, as in `mlff_triton.kernels.neighbors.shells`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import exact_loop, run
from mlff_triton.kernels.types.edges import Edges


def shells(edges: Edges, n_own: int, n_layers: int) -> tuple[Tensor, list[int]]:
    """Sort atoms by their hops along edges from the nearest of the first ``n_own`` atoms.

    Returns
    -------
    order : int32 [N]
        Index of each sorted atom. Atoms with equally many hops keep their order.
    rows : list of int
        Number of atoms with at most h hops, for each h up to ``n_layers``.
    """
    n_atoms = len(edges.slot_begin)
    hops, found = (np.full(n_atoms, n_layers + 1, dtype=np.int32) for _ in range(2))
    hops[:n_own] = 0
    slots = edges.slot_begin, edges.slot_end, edges.senders
    for h in range(n_layers):
        run(_reach, n_atoms, *slots, hops, h, found)
        hops, found = found, hops
    counts = np.bincount(hops, minlength=n_layers + 2).cumsum()
    order = np.argsort(hops, kind="stable").astype(np.int32)
    return torch.from_numpy(order), counts[: n_layers + 1].tolist()


def sort_edges(edges: Edges, order: Tensor) -> Edges:
    """Return the edges in the same slots, for atoms in another order, int32 [N].

    The senders of the given edges are overwritten.
    """
    n_atoms = len(order)
    rank = torch.empty_like(order)
    rank[order.long()] = torch.arange(n_atoms, dtype=order.dtype)
    begin, end = torch.empty_like(edges.slot_begin), torch.empty_like(edges.slot_end)
    given = edges.slot_begin, edges.slot_end, edges.senders
    run(_sort_edges, n_atoms, order, rank, *given, begin, end)
    return edges._replace(slot_begin=begin, slot_end=end)


def rename_senders(edges: Edges, names: Tensor) -> None:
    """Replace the senders of edges by other indices, int32 [N]."""
    n_atoms = len(edges.slot_begin)
    run(_rename, n_atoms, names, edges.slot_begin, edges.slot_end, edges.senders)


@exact_loop
def _rename(names, slot_begin, slot_end, senders, first, last):
    for i in range(first, last):
        for e in range(slot_begin[i], slot_end[i]):
            senders[e] = names[senders[e]]


@exact_loop
def _reach(slot_begin, slot_end, senders, hops, h, found, first, last):
    for i in range(first, last):
        found[i] = hops[i]
        if hops[i] <= h:
            continue
        for e in range(slot_begin[i], slot_end[i]):
            if hops[senders[e]] == h:
                found[i] = h + 1
                break


@exact_loop
def _sort_edges(order, rank, slot_begin, slot_end, senders, begin, end, first, last):
    for k in range(first, last):
        i = order[k]
        begin[k], end[k] = slot_begin[i], slot_end[i]
        for e in range(slot_begin[i], slot_end[i]):
            senders[e] = rank[senders[e]]
