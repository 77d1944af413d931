"""Weights of the heads of AlphaGenome, stacked by resolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from mlff_triton.bio.core.weights import converted, exact, wide_dtype
from mlff_triton.kernels.genomics.types import (
    COLUMNS,
    LOGITS,
    PROBABILITIES,
    SQUASHED,
    TRACKS,
    PairContacts,
    TrackHead,
    TrackWeights,
)

RANGE = 32.0
"""Power of two that keeps the products of splice sites within the range of float16."""

STRANDS = (("pos_donor", "pos_acceptor"), ("neg_donor", "neg_acceptor"))


class Tracks(NamedTuple):
    """Heads of one resolution, by name, and their stacked weights."""

    heads: dict[str, TrackHead]
    weights: TrackWeights


class Junctions(NamedTuple):
    """Head of splice junctions, for O organisms and T tissues.

    Attributes
    ----------
    weight, bias : [O, H, C], [O, H]
        Map of embeddings.
    scale, shift : list of two pairs of [O, T, H]
        Factors and shifts of donors and acceptors, for both strands. Factors and shifts of donors
        are divided by `RANGE`.
    mask : bool [O, T]
        Tissues of each organism.
    max_position : int
        Largest position of the rotary embeddings.
    """

    weight: Tensor
    bias: Tensor
    scale: list[tuple[Tensor, Tensor]]
    shift: list[tuple[Tensor, Tensor]]
    mask: Tensor
    max_position: int


class HeadWeights(NamedTuple):
    """Weights of all heads that cover all organisms of the model.

    Attributes
    ----------
    names : tuple of str
        Heads of tracks, in the order of the model.
    tracks : dict of int to Tracks
        Tracks of each resolution, 1 and 128.
    sites : Tracks
        Classes of splice sites, "splice_sites", and their usage, "splice_site_usage".
    usage_mask : bool [O, T] or None
        Tracks of usage of each organism.
    contacts : PairContacts or None
        Contact maps.
    contacts_eps : float
        Epsilon of the normalization before contact maps.
    junctions : Junctions or None
        Splice junctions.
    """

    names: tuple[str, ...]
    tracks: dict[int, Tracks]
    sites: Tracks
    usage_mask: Tensor | None
    contacts: PairContacts | None
    contacts_eps: float
    junctions: Junctions | None

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> HeadWeights:
        """Read the weights of a model, in a dtype."""
        wide, every = wide_dtype(dtype), heads_of(model).items()
        heads = {name: head for name, head in every if has_all_organisms(model, head)}
        usage = heads.get("splice_site_usage")
        tracks = {name: heads[name] for name in model.heads if name in heads}
        weights = cls(
            tuple(tracks),
            {resolution: _read_tracks(tracks, resolution, wide) for resolution in (1, 128)},
            _read_sites(heads, wide),
            None if usage is None else usage.track_mask,
            _read_contacts(heads.get("contact_maps"), model.embedder_pair, wide),
            model.embedder_pair.norm.eps,
            _read_junctions(heads.get("splice_junctions")),
        )
        return converted(weights, dtype)


def heads_of(model: Any) -> dict[str, Any]:
    """Return all heads of a model by the names of their results."""
    others = {
        "contact_maps": model.contact_maps_head,
        "splice_sites": model.splice_sites_classification_head,
        "splice_site_usage": model.splice_sites_usage_head,
        "splice_junctions": model.splice_sites_junction_head,
    }
    found = {name: head for name, head in others.items() if head is not None}
    return dict(model.heads.items()) | found


def has_all_organisms(model: Any, head: nn.Module) -> bool:
    """Return True if the weights of a head cover all organisms of its model."""
    parts = [head]
    if head is model.contact_maps_head:
        parts.append(model.embedder_pair.organism_embed)
    count = len(model.organism_embed.weight)
    tensors = (tensor for part in parts for tensor in (*part.parameters(), *part.buffers()))
    return all(tensor.shape[:1] == (count,) for tensor in tensors)


def _read_tracks(heads: Mapping[str, Any], resolution: int, wide: torch.dtype) -> Tracks:
    parts = {}
    for name, head in heads.items():
        if resolution in head.resolutions:
            conv = head.convs[str(resolution)]
            scale = softplus(exact(head.residual_scales[str(resolution)]))
            mean = exact(head.track_means) * resolution
            kind = SQUASHED if head.apply_squashing else TRACKS
            parts[name] = kind, TrackWeights(exact(conv.weight), exact(conv.bias), scale, mean)
    return _stack(parts, wide)


def _read_sites(heads: Mapping[str, Any], wide: torch.dtype) -> Tracks:
    parts = {}
    for name, kind in (("splice_sites", LOGITS), ("splice_site_usage", PROBABILITIES)):
        if name in heads:
            conv = heads[name].conv
            bias = exact(conv.bias)
            unused = torch.ones_like(bias)  # logits are not scaled
            parts[name] = kind, TrackWeights(exact(conv.weight), bias, unused, unused)
    return _stack(parts, wide)


def _stack(parts: Mapping[str, tuple[int, TrackWeights]], wide: torch.dtype) -> Tracks:
    """Stack the weights of heads, each starting at a multiple of 128 rows."""
    heads, padded, first = {}, [], 0
    for name, (kind, (weight, *vectors)) in parts.items():
        n_tracks = weight.shape[1]
        missing = -n_tracks % COLUMNS
        heads[name] = TrackHead(first, n_tracks, kind)
        first += n_tracks + missing
        padded.append(
            (pad(weight, (0, 0, 0, missing)), *(pad(v.to(wide), (0, missing)) for v in vectors))
        )
    if not heads:
        return Tracks({}, TrackWeights(*torch.empty(4, 0, device="cpu")))
    return Tracks(
        heads, TrackWeights(*(torch.cat(stack, 1) for stack in zip(*padded, strict=True)))
    )


def _read_contacts(head: Any, embedder: Any, wide: torch.dtype) -> PairContacts | None:
    if head is None:
        return None
    return PairContacts(
        exact(embedder.norm.weight).to(wide),
        (exact(embedder.organism_embed.weight) + exact(embedder.norm.bias)).to(wide),
        exact(head.linear.weight),
        exact(head.linear.bias).to(wide),
    )


def _read_junctions(head: Any) -> Junctions | None:
    if head is None:
        return None

    def of(part: int) -> list[tuple[Tensor, Tensor]]:
        stacked = {name: exact(rows[:, part]) for name, rows in head.rope_params.items()}
        return [(stacked[a] / RANGE, stacked[b]) for a, b in STRANDS]

    return Junctions(
        weight=exact(head.conv.weight),
        bias=exact(head.conv.bias),
        scale=of(0),
        shift=of(1),
        mask=head.tissue_mask,
        max_position=head._max_position_encoding_distance,
    )
