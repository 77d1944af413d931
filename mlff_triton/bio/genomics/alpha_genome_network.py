"""The computation of AlphaGenome up to its embeddings, with the operators of a backend.

Sequences are [B, S, C], with channels last. Every row is normalized and activated where it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mlff_triton.bio.core.operators import import_operators
from mlff_triton.bio.genomics.alpha_genome_tower import (
    BIN,
    LEVELS,
    MAX_DISTANCE,
    PAIR_HEADS,
    Block,
    PairUpdate,
    TowerWeights,
    level_index,
)
from mlff_triton.bio.genomics.alpha_genome_weights import (
    Convolution,
    ConvolutionWeights,
    Embedder,
)
from mlff_triton.bio.genomics.operators import genomic_operators
from mlff_triton.kernels.genomics.reference.convolution import activate


class Operators(NamedTuple):
    """Operators of a backend."""

    sequence_windows: Callable[[Tensor, int, Tensor], None]
    convolution: Callable[..., tuple[Any, Any]]
    pair_maxima: Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]
    attention_inputs: Callable[..., tuple[Tensor, Tensor, Tensor]]
    capped_attention: Callable[..., Tensor]
    attention_residual: Callable[[Tensor, Tensor], Tensor]
    pair_pool: Callable[..., tuple[Tensor, Tensor]]
    pair_scores: Callable[..., Tensor]
    pair_attention_inputs: Callable[..., tuple[Tensor, Tensor]]
    pair_mlp: Callable[..., tuple[Tensor, Tensor]]
    pair_contacts: Callable[..., Tensor]
    attention: Callable[..., Tensor]
    linear: Callable[[Tensor, Tensor, Tensor, str], Tensor]
    binned_linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    tracks: Callable[..., list[tuple[Tensor, ...]]]
    rotated_sites: Callable[..., Tensor]
    junction_reads: Callable[..., None]

    @classmethod
    def of(cls, backend: str | None) -> Operators:
        """Import the operators of "triton" or "torch"."""
        others = (name for name in cls._fields if name != "attention")
        general = import_operators("ops", backend, ["attention"])
        return cls(**general, **genomic_operators(backend, others))


class Encoded(NamedTuple):
    """Result of the encoder.

    Attributes
    ----------
    rows : [B, S / 2**n, C]
        Rows.
    skips : list of [B, S / 2**k, C_k]
        Rows of each resolution from the coarsest on, activated for the decoder; emptied by it.
    """

    rows: Tensor
    skips: list[Tensor]


def encode(
    ops: Operators, w: ConvolutionWeights, sequence: Tensor, *, with_skips: bool = True
) -> Encoded:
    """Encode bases [B, S, 4]."""
    n_in = w.stem.shape[2]
    windows = w.stem.new_empty(*sequence.shape[:2], n_in)
    ops.sequence_windows(sequence, w.taps, windows)
    first = w.embedder
    rows, active = ops.convolution(windows, w.stem, w.stem_bias, activation=first.activation)
    del windows
    rows, _ = ops.convolution(active, first.weight, first.bias, residual=rows)
    del active
    skips: list[Tensor] = []
    decoders = [block.skip.activation for block in reversed(w.up)]
    followers = [block[0].activation for block in w.down]
    for number, skip in enumerate(decoders):
        following = followers[number] if number < len(followers) else None
        rows, active, kept = ops.pair_maxima(rows, following, skip if with_skips else None)
        if kept is not None:
            skips.insert(0, kept)
        if active is not None:
            one, two = w.down[number]
            rows, active = ops.convolution(
                active, one.weight, one.bias, residual=rows, activation=two.activation
            )
            rows, _ = ops.convolution(active, two.weight, two.bias, residual=rows)
            del active
    return Encoded(rows, skips)


def decode(ops: Operators, w: ConvolutionWeights, x: Tensor, skips: list[Tensor]) -> Tensor:
    """Decode rows of the coarsest resolution to [B, S, C]; this empties the list of skips."""
    active: Tensor | None = activate(x, w.up[0].first.activation)
    following: list[Convolution | None] = [block.first for block in w.up[1:]]
    for block, after in zip(w.up, [*following, None], strict=True):
        first, skip, last, scale = block
        n_out = len(first.weight)
        x, _ = ops.convolution(active, first.weight, first.bias, residual=x[..., :n_out])
        del active
        x, active = ops.convolution(
            skips.pop(0),
            skip.weight,
            skip.bias,
            residual=x,
            residual_scale=scale,
            activation=last.activation,
        )
        x, active = ops.convolution(
            active,
            last.weight,
            last.bias,
            residual=x,
            activation=None if after is None else after.activation,
        )
    return x


class PositionTables(NamedTuple):
    """Angles [S, D / 2] of positions, and indices of distances, for a length."""

    cos: Tensor
    sin: Tensor
    levels: Tensor

    @classmethod
    def of(cls, length: int, dim: int, device: torch.device) -> PositionTables:
        """Compute it for positions of the transformer; this waits for the device."""
        angle = angles(torch.arange(length, device=device), dim, MAX_DISTANCE)
        return cls(angle.cos(), angle.sin(), level_index(length // BIN, device))


def angles(positions: Tensor, dim: int, max_position: int) -> Tensor:
    """Return the angles float32 [..., D / 2] of rotary embeddings at integer positions [...]."""
    n = dim // 2
    end, device = math.log10(max_position - n + 1), positions.device
    growth = torch.logspace(0, end, n, dtype=torch.float32, device=device)
    frequency = 1 / (torch.arange(n, dtype=torch.float32, device=device) + growth)
    return positions[..., None].float() * frequency


def transform(
    ops: Operators, w: TowerWeights, x: Tensor, organism: Tensor, tables: PositionTables
) -> tuple[Tensor, Tensor]:
    """Apply the transformer to rows [B, S, C]; return them and the pairs [B, P, P, D]."""
    rows = x + w.organisms[organism][:, None]  # in float32
    x = rows.to(x.dtype)
    pair: Tensor | None = None
    biases: list[Tensor] = []
    for block in w.blocks:
        if block.pair is not None:
            pair, found = _update_pairs(ops, block.pair, x, pair, tables.levels)
            biases = list(found)
        x = _update_rows(ops, block, rows, x, biases.pop(0), tables)
    assert pair is not None
    return (rows + w.shift).to(x.dtype), pair


def _update_rows(
    ops: Operators, w: Block, rows: Tensor, x: Tensor, bias: Tensor, tables: PositionTables
) -> Tensor:
    """Update rows [B, S, C] in place; take and return them in the dtype of the maps."""
    flat, given = rows.view(-1, rows.shape[2]), x.view(-1, x.shape[2])
    heads = ops.linear(given, w.qkv, w.qkv_bias, "none").view(*x.shape[:2], -1)
    q, k, v = ops.attention_inputs(heads, *w.norms, tables.cos, tables.sin)
    attended = ops.capped_attention(q, k, v, bias).view(len(flat), -1)
    given = ops.attention_residual(flat, attended @ w.out.T)
    hidden = ops.linear(given, w.up, w.up_bias, "relu")
    return ops.attention_residual(flat, hidden @ w.down.T).view(x.shape)


def _update_pairs(
    ops: Operators, w: PairUpdate, x: Tensor, pair: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the pairs and the biases [L, B, P, P, H] of this block and perhaps the next."""
    bins, activated = ops.pair_pool(x, w.shift, *w.norm, BIN)
    terms = functional.linear(bins, w.bins, w.bins_bias)
    scores = ops.pair_scores(terms, index, PAIR_HEADS, LEVELS)
    y = functional.linear(activated, w.activated)
    pair, qkv = ops.pair_attention_inputs(
        scores, y, pair, w.scores, w.scores_bias, w.eps, w.qkv, w.qkv_bias
    )
    n_bins = pair.shape[1]
    parts = (part[:, None] for part in qkv.flatten(0, 2).chunk(3, 1))
    row_ptr = torch.arange(
        0, pair[..., 0].numel() + 1, n_bins, dtype=torch.int32, device=pair.device
    )
    attended = ops.attention(*parts, row_ptr, n_bins).view(pair.shape)
    return ops.pair_mlp(pair, attended, w.mlp_eps, w.mlp, w.biases)


def embed_bins(ops: Operators, w: Embedder, x: Tensor, organism: Tensor) -> Tensor:
    """Return the embeddings [B, S / 128, N] of bins of the sequence."""
    return ops.binned_linear(x, w.weight, w.shift[organism][:, None])


def embed_bases(ops: Operators, w: Embedder, x: Tensor, bins: Tensor, organism: Tensor) -> Tensor:
    """Return the embeddings [B, S, N] of all positions, given those of bins."""
    bias = w.shift[organism][:, None]
    if w.skip is not None:
        bias = functional.linear(bins, w.skip) + bias
    return ops.binned_linear(x, w.weight, bias)
