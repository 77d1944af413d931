"""Heads of AlphaGenome: tracks, contact maps, splice sites and junctions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.models.alpha_genome.head_weights import (
    RANGE,
    HeadWeights,
    Junctions,
    Tracks,
)
from mlff_triton.bio.models.alpha_genome.network import angles
from mlff_triton.kernels.genomics.protocol import GenomicOperators
from mlff_triton.kernels.genomics.types import TrackPlan


class Request(NamedTuple):
    """Results that are requested from a model.

    Attributes
    ----------
    heads : frozenset of str or None
        Names of heads; None for all.
    predictions, embeddings : bool
        If True, return the results of heads and the embeddings, respectively.
    bases : bool
        If True, compute results at the resolution of bases.
    scaled : bool
        If True, tracks are on the scale of the model.
    channels_last : bool
        If False, channels come before positions.
    dtype : torch.dtype
        Dtype of the results.
    """

    heads: frozenset[str] | None
    predictions: bool
    embeddings: bool
    bases: bool
    scaled: bool
    channels_last: bool
    dtype: torch.dtype

    def wants(self, name: str) -> bool:
        """Return True if a head is requested."""
        return self.heads is None or name in self.heads

    @property
    def needs_sites(self) -> bool:
        """True if splice junctions are requested, unless the model has no head for them."""
        return self.predictions and self.bases and self.wants("splice_junctions")

    def laid_out(self, x: Tensor) -> Tensor:
        """Return a result [B, S, C] in the requested layout."""
        return x if self.channels_last else x.transpose(1, 2).contiguous()


class Heads:
    """Heads of a model with the operators of a backend.

    Parameters
    ----------
    ops : GenomicOperators
        Operators.
    weights : HeadWeights
        Weights.
    top_sites : callable
        Function of the model that finds splice sites from probabilities [B, S, 5].
    """

    def __init__(
        self, ops: GenomicOperators, weights: HeadWeights, top_sites: Callable[..., Tensor]
    ) -> None:
        self._ops, self._weights, self._top_sites = ops, weights, top_sites
        self._plans: dict[object, TrackPlan] = {}

    def need_bases(self, request: Request) -> bool:
        """Return True if a requested head reads embeddings of all positions."""
        w = self._weights
        names = {*w.tracks[1].heads, *w.sites.heads}
        if w.junctions is not None:
            names.add("splice_junctions")
        return any(map(request.wants, names))

    def tracks(
        self, embeddings: dict[int, Tensor], organism: Tensor, request: Request
    ) -> dict[str, Any]:
        """Compute the tracks of all resolutions for which there are embeddings [B, S, C].

        A requested head of other resolutions gets an empty dictionary.
        """
        names = filter(request.wants, self._weights.names)
        found: dict[str, dict[int, Tensor]] = {name: {} for name in names}
        for resolution, x in embeddings.items():
            weights = self._weights.tracks[resolution]
            for name, (result,) in self._products(weights, x, organism, request):
                found[name][resolution] = request.laid_out(result)
        return found

    def contacts(self, pair: Tensor, organism: Tensor, request: Request) -> Tensor | None:
        """Compute contact maps from pairs, if they are requested."""
        weights = self._weights.contacts
        if weights is None or not request.wants("contact_maps"):
            return None
        maps = self._ops.pair_contacts(
            pair, self._weights.contacts_eps, weights, organism, request.dtype
        )
        return maps if request.channels_last else maps.permute(0, 3, 1, 2).contiguous()

    def splicing(
        self, x: Tensor, organism: Tensor, positions: Tensor | None, request: Request
    ) -> dict[str, Any]:
        """Compute splice sites, their usage and junctions from embeddings [B, S, C].

        If the positions of splice sites [B, 4, K] are None, they are found from the embeddings.
        """
        w, outputs = self._weights, {}
        junctions = w.junctions if request.wants("splice_junctions") else None
        needed = {name for name in w.sites.heads if request.wants(name)}
        if junctions is not None and positions is None:
            needed.add("splice_sites")
        chosen = request._replace(heads=frozenset(needed))
        found = dict(self._products(w.sites, x, organism, chosen))
        if "splice_sites" in found:
            (logits,) = found["splice_sites"]
            probabilities = logits.softmax(-1)
            if request.wants("splice_sites"):
                both = {"logits": logits, "probs": probabilities}
                outputs["splice_sites"] = {k: request.laid_out(v) for k, v in both.items()}
            if positions is None and junctions is not None:
                options = {"k": 512, "pad_to_length": 512, "threshold": 0.1}
                positions = self._top_sites(
                    ref=probabilities, alt=None, true_splice_sites=None, **options
                )
        if "splice_site_usage" in found:
            logits, predictions = map(request.laid_out, found["splice_site_usage"])
            assert w.usage_mask is not None
            mask = request.laid_out(w.usage_mask[organism][:, None])
            outputs["splice_site_usage"] = {
                "logits": logits,
                "predictions": predictions,
                "track_mask": mask,
            }
        if junctions is not None:
            assert positions is not None
            outputs["splice_junctions"] = predict_junctions(
                self._ops, x, junctions, organism, positions, request.dtype
            )
        return outputs

    def _products(
        self, tracks: Tracks, x: Tensor, organism: Tensor, request: Request
    ) -> list[tuple[str, tuple[Tensor, ...]]]:
        names = [name for name in tracks.heads if request.wants(name)]
        if not names:
            return []
        heads = tuple(tracks.heads[name] for name in names)
        n_rows = x.shape[0] * x.shape[1]
        key = heads, n_rows, x.device
        if key not in self._plans:
            self._plans[key] = TrackPlan.of(heads, n_rows, x.device)
        found = self._ops.tracks(
            x,
            tracks.weights,
            self._plans[key],
            organism,
            request.dtype,
            scaled=request.scaled,
        )
        return list(zip(names, found, strict=True))


def predict_junctions(
    ops: GenomicOperators,
    x: Tensor,
    w: Junctions,
    organism: Tensor,
    positions: Tensor,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Predict the reads of all junctions between splice sites [B, 4, K] or [1, 4, K].

    Only the embeddings of the sites are mapped.
    """
    batch, given = torch.arange(len(x), device=x.device), positions
    positions = positions.long().expand(len(x), -1, -1).contiguous()
    sites = x[batch[:, None, None], positions].flatten(1, 2)  # [B, 4 K, C]
    mapped = torch.baddbmm(w.bias[organism][:, None], sites, w.weight[organism].mT)
    mapped = mapped.unflatten(1, positions.shape[1:])  # [B, 4, K, H]
    angle = angles(positions, mapped.shape[-1], w.max_position)
    cos, sin = angle.cos(), angle.sin()
    n_sites, n_tissues = positions.shape[2], w.mask.shape[1]
    shape = len(x), n_sites, n_sites, 2 * n_tissues
    counts = torch.empty(shape, dtype=dtype, device=x.device)
    mask = torch.empty(shape, dtype=torch.bool, device=x.device)
    known, measured = positions >= 0, w.mask[organism][:, None, None]
    for strand, (scales, shifts) in enumerate(zip(w.scale, w.shift, strict=True)):
        donors, acceptors = (
            ops.rotated_sites(
                mapped[:, number],
                scales[end],
                shifts[end],
                cos[:, number],
                sin[:, number],
                organism,
            )
            for end, number in enumerate((2 * strand, 2 * strand + 1))
        )
        tissues = slice(strand * n_tissues, (strand + 1) * n_tissues)
        ends = positions[:, 2 * strand : 2 * strand + 2]
        out = counts[..., tissues]
        ops.junction_reads(donors @ acceptors.mT, RANGE, ends, w.mask, organism, out)
        both = known[:, 2 * strand, :, None] & known[:, 2 * strand + 1, None]  # [B, K, K]
        torch.logical_and(both[..., None], measured, out=mask[..., tissues])
    return {
        "pred_counts": counts,
        "splice_site_positions": given,
        "splice_junction_mask": mask,
    }
