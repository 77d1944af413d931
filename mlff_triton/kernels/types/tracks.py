"""Weights of the heads of AlphaGenome that are products, stacked, and plans of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

COLUMNS = 128  # of a tile; a tile belongs to one head
TRACKS, SQUASHED, LOGITS, PROBABILITIES = range(4)


class TrackHead(NamedTuple):
    """A head within stacked weights.

    Attributes
    ----------
    first : int
        First row of its weights, a multiple of 128.
    n_tracks : int
        Number of tracks.
    kind : int
        TRACKS; SQUASHED, for tracks to the power 3/4; LOGITS; or PROBABILITIES, which returns
        logits and their sigmoid.
    """

    first: int
    n_tracks: int
    kind: int


class TrackWeights(NamedTuple):
    """Weights of the heads of a resolution, for O organisms, zero between the heads.

    Attributes
    ----------
    weight : [O, W, K]
        Maps of embeddings.
    bias, scale, mean : float32 [O, W]
        Bias, factor of the softplus, and factor of the result.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
    mean: Tensor


class TrackPlan(NamedTuple):
    """Tiles of the heads that are computed, and where their results lie in one block of memory.

    Attributes
    ----------
    heads : tuple of TrackHead
        Heads.
    starts : list of tuple of int
        First element of each result of each head.
    table : int64 [tiles, 6]
        Row of the weights, first elements of the results, number of tracks, first track, kind.
    size : int
        Number of elements of all results.
    """

    heads: tuple[TrackHead, ...]
    starts: list[tuple[int, ...]]
    table: Tensor
    size: int

    @classmethod
    def of(cls, heads: Sequence[TrackHead], n_rows: int, device: torch.device) -> TrackPlan:
        """Plan the results [n_rows, n_tracks] of heads; this waits for the device."""
        starts: list[tuple[int, ...]] = []
        table, size = [], 0
        for first, n_tracks, kind in heads:
            results = 2 if kind == PROBABILITIES else 1
            begin = tuple(size + n * n_rows * n_tracks for n in range(results))
            starts.append(begin)
            size += results * n_rows * n_tracks
            table += [
                (first + track, begin[0], begin[-1], n_tracks, track, kind)
                for track in range(0, n_tracks, COLUMNS)
            ]
        return cls(tuple(heads), starts, torch.tensor(table, device=device), size)

    def results(self, memory: Tensor, shape: tuple[int, int]) -> list[tuple[Tensor, ...]]:
        """Return the results [B, S, n_tracks] of each head as views of the memory."""
        views = []
        for head, starts in zip(self.heads, self.starts, strict=True):
            n = shape[0] * shape[1] * head.n_tracks
            views.append(tuple(memory[s : s + n].view(*shape, head.n_tracks) for s in starts))
        return views
