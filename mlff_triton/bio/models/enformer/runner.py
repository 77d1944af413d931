"""Runner of Enformer: weights and tables that are kept between calls, and CUDA graphs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton._common.torch_settings import own_settings
from mlff_triton.bio.core.fast_forward import Options
from mlff_triton.bio.core.graph_cache import GraphCache, Inputs
from mlff_triton.bio.core.operators import genomic_operators
from mlff_triton.bio.core.weights import wide_dtype
from mlff_triton.bio.models.enformer.network import downsample, embed, predict
from mlff_triton.bio.models.enformer.structure import function_of, shrinkage
from mlff_triton.bio.models.enformer.weights import EnformerWeights

MANY_BASES = 1 << 20
"""Bases of a batch above which launches take no time beside the computation."""

N_LENGTHS = 4
"""Number of sequence lengths to remember."""


class Request(NamedTuple):
    """Results to compute: number of bins to drop at each end, heads, and True for embeddings."""

    dropped: int
    heads: tuple[str, ...]
    embeddings: bool


class Length(NamedTuple):
    """Keys of relative positions in each layer for one number of bins, and CUDA graphs with them.

    Graphs hold the addresses of the keys, so both are dropped together.
    """

    keys: list[Tensor]
    graphs: Any


class EnformerRunner:
    """Runs a model in the layout and dtype of a backend, in CUDA graphs for lengths that recur.

    Parameters
    ----------
    model : torch.nn.Module
        Model whose present weights are read.
    backend : {"triton", "torch"}
        Backend.
    dtype : torch.dtype
        Dtype of the computation.
    options : Options
        Options chosen by the user.
    """

    def __init__(
        self, model: Any, backend: str | None, dtype: torch.dtype, options: Options
    ) -> None:
        first = next(model.parameters())
        self._weights = EnformerWeights.of(model, dtype)
        self._operators, self._dtype, self._out = genomic_operators(backend), dtype, first.dtype
        self._uses_graphs = options.captures(backend, model)
        self._always = options.cuda_graph is True
        self._attention = [part.fn[1] for part, _ in model.transformer]
        self._features = function_of(self._attention[0], "get_positional_embed")
        self._shrinkage = shrinkage(model)
        self._lengths: OrderedDict[tuple[int, tuple[bool, ...]], Length] = OrderedDict()

    def __call__(self, sequence: Tensor, request: Request) -> tuple[Tensor, ...]:
        """Return embeddings if requested, and the tracks of all requested heads.

        Takes bases [B, S, 4].
        """
        length = self._length(sequence)
        many = sequence.shape[0] * sequence.shape[1] > MANY_BASES and not self._always
        if length.graphs is None or many:
            return self._compute(sequence, length.keys, request)
        outputs: tuple[Tensor, ...] = length.graphs((sequence,), request)
        return outputs

    def replay(self, sequence: Tensor, request: Request) -> tuple[Tensor, ...] | None:
        """Return the outputs of an existing graph, or None if there is none."""
        key = self._key(sequence)
        length = self._lengths.get(key)
        if length is None or length.graphs is None:
            return None
        self._lengths.move_to_end(key)
        outputs: tuple[Tensor, ...] | None = length.graphs.replay((sequence,), request)
        return outputs

    def _compute(
        self, sequence: Tensor, keys: Sequence[Tensor], request: Request
    ) -> tuple[Tensor, ...]:
        bins = downsample(self._operators, self._weights, sequence)
        kept = slice(request.dropped, bins.shape[1] - request.dropped)
        embeddings = embed(self._operators, self._weights, bins, keys, kept)
        tracks = [predict(self._weights, name, embeddings, self._out) for name in request.heads]
        return (embeddings.to(self._out), *tracks) if request.embeddings else tuple(tracks)

    def _length(self, sequence: Tensor) -> Length:
        """Return the keys and graphs of a length, from a cache of a few lengths."""
        key = self._key(sequence)
        if key in self._lengths:
            self._lengths.move_to_end(key)
            return self._lengths[key]
        length = self._make_length(*key, sequence.device)
        if not is_capturing(sequence):  # capturing computes nothing
            self._lengths[key] = length
            while len(self._lengths) > N_LENGTHS:
                self._lengths.popitem(last=False)
        return length

    def _key(self, sequence: Tensor) -> tuple[int, tuple[bool, ...]]:
        """Return the number of bins, and the layers that use stored positional features."""
        gammas = tuple(bool(attention.use_tf_gamma) for attention in self._attention)
        return sequence.shape[1] // self._shrinkage, gammas

    def _make_length(self, n_bins: int, gammas: Sequence[bool], device: torch.device) -> Length:
        wide = wide_dtype(self._dtype)
        count = self._weights.layers[0].positions.shape[1]
        with own_settings():  # as the package uses the default dtype
            features = {
                gamma: self._features(n_bins, count, device, use_tf_gamma=gamma, dtype=wide)
                for gamma in set(gammas)
            }
        keys = []
        for layer, gamma in zip(self._weights.layers, gammas, strict=True):
            relative = (features[gamma].to(wide) @ layer.positions.T).to(self._dtype)
            keys.append(relative.unflatten(1, layer.content_bias.shape))
        if not self._uses_graphs:
            return Length(keys, None)

        def compute(inputs: Inputs, request: Request) -> tuple[Tensor, ...]:
            (sequence,) = inputs
            assert sequence is not None
            return self._compute(sequence, keys, request)

        return Length(keys, GraphCache(compute))
