"""AlphaGenome with the operators of a backend, as CUDA graphs for short sequences."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from mlff_triton.bio.core.fast_forward import Options
from mlff_triton.bio.core.graph_cache import GraphCache, Inputs
from mlff_triton.bio.core.operators import genomic_operators
from mlff_triton.bio.models.alpha_genome.head_weights import HeadWeights
from mlff_triton.bio.models.alpha_genome.heads import Heads, Request
from mlff_triton.bio.models.alpha_genome.network import (
    PositionTables,
    decode,
    embed_bases,
    embed_bins,
    encode,
    transform,
)
from mlff_triton.bio.models.alpha_genome.tower import TowerWeights
from mlff_triton.bio.models.alpha_genome.weights import ConvolutionWeights

BASES = 4
MANY_BASES = 131072
"""Total number of bases beyond which launches take less time than kernels."""


class Network:
    """The model in the layout and dtype of a backend.

    Parameters
    ----------
    model : torch.nn.Module
        AlphaGenome.
    backend : str or None
        "triton" or "torch".
    dtype : torch.dtype
        Dtype of the computation.
    options : Options
        Options of the acceleration.
    """

    def __init__(
        self, model: Any, backend: str | None, dtype: torch.dtype, options: Options
    ) -> None:
        self._ops, self._dtype = genomic_operators(backend), dtype
        self._convolutions = ConvolutionWeights.of(model, dtype)
        self._tower = TowerWeights.of(model, dtype)
        top_sites = vars(sys.modules[type(model).__module__])["generate_splice_site_positions"]
        self._heads = Heads(self._ops, HeadWeights.of(model, dtype), top_sites)
        self._tables: dict[tuple[int, torch.device], PositionTables] = {}
        self._layouts: dict[Request, dict[Any, Any]] = {}  # of results, with None for tensors
        self._most = sys.maxsize if options.cuda_graph is True else MANY_BASES
        captures = options.captures(backend, model)
        self._graphs: Any = GraphCache(self._flat) if captures else None

    def __call__(self, inputs: Inputs, request: Request) -> dict[str, Any]:
        """Return everything that is requested, by name and resolution or kind.

        Inputs are bases [B, S, 4], organisms [B] and splice sites [B, 4, K] or None.
        """
        if not self._uses_graphs(inputs):
            return self._compute(inputs, request)
        results = self._graphs(inputs, request)
        return _filled(self._layouts[request], iter(results))

    def replay(self, inputs: Inputs, request: Request) -> dict[str, Any] | None:
        """Return the results from an existing graph, or None if there is none."""
        results = self._graphs.replay(inputs, request) if self._uses_graphs(inputs) else None
        if results is None:
            return None
        return _filled(self._layouts[request], iter(results))

    def _uses_graphs(self, inputs: Inputs) -> bool:
        sequence = inputs[0]
        if self._graphs is None or sequence is None:
            return False
        return sequence.numel() <= BASES * self._most

    def encode(self, sequence: Tensor) -> Tensor:
        """Encode bases [B, S, 4]; return rows [B, S / 128, C]."""
        return encode(self._ops, self._convolutions, self._bases(sequence), with_skips=False).rows

    def _flat(self, inputs: Inputs, request: Request) -> tuple[Tensor, ...]:
        """Compute everything that is requested, and store the layout of the results."""
        found = self._compute(inputs, request)
        self._layouts[request] = _filled(found, repeat(None))
        return tuple(_tensors(found))

    def _compute(self, inputs: Inputs, request: Request) -> dict[str, Any]:
        sequence, organism, positions = inputs
        assert sequence is not None
        assert organism is not None
        needed = request.embeddings or (request.predictions and self._heads.need_bases(request))
        with_bases = request.bases and needed
        embeddings, pair = self._embed(sequence, organism, with_bases=with_bases)
        outputs: dict[str, Any] = {}
        if request.predictions:
            outputs |= self._heads.tracks(embeddings, organism, request)
            contacts = self._heads.contacts(pair, organism, request)
            if contacts is not None:
                outputs["contact_maps"] = contacts
            if with_bases:
                outputs |= self._heads.splicing(embeddings[1], organism, positions, request)
        if request.embeddings:
            for resolution, x in embeddings.items():
                outputs[f"embeddings_{resolution}bp"] = request.laid_out(x)
        return outputs

    def _embed(
        self, sequence: Tensor, organism: Tensor, *, with_bases: bool
    ) -> tuple[dict[int, Tensor], Tensor]:
        """Return the embeddings of each resolution [B, S / resolution, C], and the pairs."""
        ops, w = self._ops, self._convolutions
        rows, skips = encode(ops, w, self._bases(sequence), with_skips=with_bases)
        rows, pair = transform(ops, self._tower, rows, organism, self._tables_of(rows))
        bins = embed_bins(ops, w.bins, rows, organism)
        if not with_bases:
            return {128: bins}, pair
        decoded = decode(ops, w, rows, skips)
        return {1: embed_bases(ops, w.bases, decoded, bins, organism), 128: bins}, pair

    def _bases(self, sequence: Tensor) -> Tensor:
        return sequence.to(self._dtype).contiguous()

    def _tables_of(self, rows: Tensor) -> PositionTables:
        key = rows.shape[1], rows.device
        if key not in self._tables:
            dim = len(self._tower.blocks[0].norms[0][0])
            self._tables[key] = PositionTables.of(rows.shape[1], dim, rows.device)
        return self._tables[key]


def _tensors(outputs: Mapping[Any, Any]) -> Iterator[Tensor]:
    """Yield the tensors of nested outputs."""
    for value in outputs.values():
        if isinstance(value, Tensor):
            yield value
        else:
            yield from _tensors(value)


def _filled(outputs: Mapping[Any, Any], values: Iterator[Any]) -> dict[Any, Any]:
    """Return nested outputs with each entry that is not a dictionary replaced by the next value."""
    return {
        name: _filled(value, values) if isinstance(value, dict) else next(values)
        for name, value in outputs.items()
    }
