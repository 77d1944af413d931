"""Neighbor lists of many structures, as one graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton._common.torch_settings import using_threads
from mlff_triton.errors import InputError
from mlff_triton.neighbors.graph import Graph
from mlff_triton.neighbors.neighbor_list import FAR, MIN_DISTANCE, neighbor_list
from mlff_triton.training.frames import Array, Frames

MOST_ATOMS = 100  # of structures whose pairs are all compared
CHUNK = 2**18  # pairs that are compared at once, which fit in the cache of a core
SMALL = 2**31  # atoms and edges below which int32 holds their indices


class _Lists(NamedTuple):
    """Lists of some structures; atoms and edges are counted from the first of each structure."""

    structures: Array  # [S]
    n_edges: Tensor  # [S]
    n_neighbors: Tensor  # of each atom
    senders: Tensor
    reverse: Tensor
    shifts: Tensor | None


def neighbor_lists(frames: Frames, cutoff: float) -> tuple[Graph, Tensor]:
    """Find the pairs of atoms in each structure that are closer than a cutoff.

    Small structures in open space are compared pair by pair, many of the same size at once.
    `neighbor_list` finds the lists of all others.

    Parameters
    ----------
    frames : Frames
        C structures with N atoms.
    cutoff : float
        Å; `math.inf` for all pairs, without periodic structures.

    Returns
    -------
    Graph
        The list, with indices in int32 if they fit.
    int64 [C + 1]
        First edge of each structure, with the total at the end.

    Raises
    ------
    InputError
        If a structure has no list, for example because two atoms coincide. The line names it.
    """
    with using_threads(1):  # several wait for each other at every operation if cores are busy
        found = list(_lists(frames, cutoff))
    count = torch.zeros(len(frames) + 1, dtype=torch.int64)
    n_neighbors = torch.zeros(len(frames.numbers) + 1, dtype=torch.int64)
    for part in found:
        count[1 + torch.from_numpy(part.structures)] = part.n_edges
        n_neighbors[1 + torch.from_numpy(frames.atoms_of(part.structures))] = part.n_neighbors
    edge_start = count.cumsum(0)
    n_edges = int(edge_start[-1])
    dtype = torch.int32 if max(n_edges, len(frames.numbers)) < SMALL else torch.int64
    senders = torch.empty(n_edges, dtype=dtype)
    reverse = torch.empty(n_edges, dtype=dtype)
    is_open = all(part.shifts is None for part in found)
    shifts = torch.zeros(1 if is_open else n_edges, 3, dtype=torch.int32)
    for part in found:
        first = edge_start[part.structures]
        owner = torch.arange(len(first)).repeat_interleave(part.n_edges)
        own_first = part.n_edges.cumsum(0) - part.n_edges
        place = torch.arange(len(owner)) + (first - own_first)[owner]
        atom = torch.from_numpy(frames.start[part.structures])
        senders[place] = (part.senders + atom[owner]).to(dtype)
        reverse[place] = (part.reverse + first[owner]).to(dtype)
        if part.shifts is not None:
            shifts[place] = part.shifts.int()
    return Graph(n_neighbors.cumsum(0), senders, shifts.expand(n_edges, 3), reverse), edge_start


def _lists(frames: Frames, cutoff: float) -> Iterator[_Lists]:
    largest = np.maximum.reduceat(np.abs(frames.positions).max(axis=1), frames.start[:-1])
    is_simple = (frames.n_atoms <= MOST_ATOMS) & ~frames.pbc.any(axis=1) & (largest < FAR)
    for n in np.unique(frames.n_atoms[is_simple]):
        same = np.flatnonzero(is_simple & (frames.n_atoms == n))
        size = max(1, CHUNK // int(n) ** 2)
        for k in range(0, len(same), size):
            yield _compared(frames, same[k : k + size], int(n), cutoff)
    for k in np.flatnonzero(~is_simple).tolist():
        graph = _single(frames, k, cutoff)
        n_edges = torch.tensor([graph.n_edges])
        shifts = graph.shifts if frames.pbc[k].any() else None
        lists = (graph.row_ptr.diff(), graph.senders, graph.reverse, shifts)
        yield _Lists(np.array([k]), n_edges, *lists)


def _single(frames: Frames, k: int, cutoff: float) -> Graph:
    atoms = slice(frames.start[k], frames.start[k + 1])
    try:
        return neighbor_list(frames.positions[atoms], cutoff, frames.cell[k], frames.pbc[k])
    except InputError as error:
        raise InputError(f"{frames.name[k]}: {error}") from error


def _compared(frames: Frames, chosen: Array, n: int, cutoff: float) -> _Lists:
    """Return lists of structures of n atoms each, whose pairs are all compared."""
    points = torch.from_numpy(frames.positions[frames.atoms_of(chosen)]).view(-1, n, 3)
    columns = points.unbind(2)
    square = sum((x[:, :, None] - x[:, None, :]).square() for x in columns)  # [S, n, n]
    assert isinstance(square, Tensor)
    square.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    closest = square.amin((1, 2))
    if bool((closest < MIN_DISTANCE**2).any()):
        _single(frames, int(chosen[int(closest.argmin())]), cutoff)  # raises
    is_near = (square < cutoff**2).flatten(1)
    rank = is_near.cumsum(1, dtype=torch.int32) - 1
    senders = torch.arange(n, dtype=torch.int32).repeat(n).expand_as(is_near)
    opposite = rank.view(-1, n, n).mT.reshape(len(rank), -1)
    return _Lists(
        structures=chosen,
        n_edges=is_near.sum(1),
        n_neighbors=is_near.view(-1, n).sum(1),
        senders=senders[is_near],
        reverse=opposite[is_near],
        shifts=None,
    )
