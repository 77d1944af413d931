"""Arguments and results of kernels on sequences and pairs, for models of genomes."""

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
    """Tiles of the heads to compute, and positions of their results in one buffer.

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
        """Plan the results [n_rows, n_tracks] of heads. This waits for the device."""
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
        """Return the results [B, S, n_tracks] of each head as views of the buffer ``memory``."""
        views = []
        for head, starts in zip(self.heads, self.starts, strict=True):
            n = shape[0] * shape[1] * head.n_tracks
            views.append(tuple(memory[s : s + n].view(*shape, head.n_tracks) for s in starts))
        return views


ALIGNMENT = 8
"""The number of channels of operands is a multiple of this."""


class Activation(NamedTuple):
    """Batch normalization followed by GELU: ``u sigmoid(1.702 u)`` of ``u = scale x + shift``.

    Attributes
    ----------
    scale, shift : [N]
        Normalization of each channel; float32 for half precision.
    """

    scale: Tensor
    shift: Tensor


class Activated(NamedTuple):
    """Rows, and the same rows normalized and activated for the layer that reads them next.

    Attributes
    ----------
    rows : [B, S, N] or None
        Rows, if requested.
    activated : [B, S, N] or None
        Activated rows, if requested.
    """

    rows: Tensor | None
    activated: Tensor | None


class PairMaxima(NamedTuple):
    """Maxima of pairs of positions, and activated positions.

    Attributes
    ----------
    rows : [B, S / 2, C]
        Maxima.
    next : [B, S / 2, C] or None
        Maxima, normalized and activated.
    skip : [B, S, C] or None
        All positions, normalized and activated.
    """

    rows: Tensor
    next: Tensor | None
    skip: Tensor | None


class PairMLP(NamedTuple):
    """MLP of normalized pairs.

    Attributes
    ----------
    up, up_bias : [C, K], [K]
        Map to the hidden layer, including the weight and bias of the normalization.
    down, down_bias : [K, C], [C]
        Map of the hidden layer.
    """

    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


class PairBiases(NamedTuple):
    """Maps of pairs to biases of the attention of L layers.

    Attributes
    ----------
    scale, shift : float32 [L, C]
        Normalization.
    weight : [L, C, H]
        Map of the activated pairs to heads.
    """

    scale: Tensor
    shift: Tensor
    weight: Tensor


class PairContacts(NamedTuple):
    """Map of pairs to contacts, for O organisms.

    Attributes
    ----------
    scale : float32 [C]
        Weight of the normalization.
    shift : float32 [O, C]
        Bias of the normalization plus the embedding of an organism.
    weight, bias : [O, C, T], float32 [O, T]
        Map of the activated pairs to T tracks.
    """

    scale: Tensor
    shift: Tensor
    weight: Tensor
    bias: Tensor
