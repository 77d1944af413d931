"""The computation of AlphaGenome up to its embeddings, with the operators of a backend.

Sequences are [B, S, C], with channels last. The kernel that computes a row also normalizes and
activates it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mlff_triton.bio.models.alpha_genome.tower import (
    BIN,
    LEVELS,
    MAX_DISTANCE,
    PAIR_HEADS,
    Block,
    PairUpdate,
    TowerWeights,
    level_index,
)
from mlff_triton.bio.models.alpha_genome.weights import (
    Convolution,
    ConvolutionWeights,
    Embedder,
)
from mlff_triton.kernels.genomics.protocol import GenomicOperators
from mlff_triton.kernels.genomics.reference.convolution import activate
from mlff_triton.kernels.genomics.types import Activated


class Encoded(NamedTuple):
    """Result of the encoder.

    Attributes
    ----------
    rows : [B, S / 2**n, C]
        Rows.
    skips : list of [B, S / 2**k, C_k]
        Rows of each resolution, coarsest first, activated for the decoder, which empties the list.
    """

    rows: Tensor
    skips: list[Tensor]


def encode(
    ops: GenomicOperators, w: ConvolutionWeights, sequence: Tensor, *, with_skips: bool = True
) -> Encoded:
    """Encode bases [B, S, 4]."""
    n_in = w.stem.shape[2]
    windows = w.stem.new_empty(*sequence.shape[:2], n_in)
    ops.sequence_windows(sequence, w.taps, windows)
    first = w.embedder
    rows, active = _both(ops.convolution(windows, w.stem, w.stem_bias, activation=first.activation))
    del windows
    rows = _rows(ops.convolution(active, first.weight, first.bias, residual=rows))
    del active
    skips: list[Tensor] = []
    decoders = [block.skip.activation for block in reversed(w.up)]
    followers = [block[0].activation for block in w.down]
    for number, skip in enumerate(decoders):
        following = followers[number] if number < len(followers) else None
        rows, half, kept = ops.pair_maxima(rows, following, skip if with_skips else None)
        if kept is not None:
            skips.insert(0, kept)
        if half is not None:
            one, two = w.down[number]
            rows, half = _both(
                ops.convolution(
                    half, one.weight, one.bias, residual=rows, activation=two.activation
                )
            )
            rows = _rows(ops.convolution(half, two.weight, two.bias, residual=rows))
            del half
    return Encoded(rows, skips)


def decode(ops: GenomicOperators, w: ConvolutionWeights, x: Tensor, skips: list[Tensor]) -> Tensor:
    """Decode rows of the coarsest resolution to [B, S, C]; this empties the list of skips."""
    active: Tensor | None = activate(x, w.up[0].first.activation)
    following: list[Convolution | None] = [block.first for block in w.up[1:]]
    for block, after in zip(w.up, [*following, None], strict=True):
        first, skip, last, scale = block
        n_out = len(first.weight)
        assert active is not None
        x = _rows(ops.convolution(active, first.weight, first.bias, residual=x[..., :n_out]))
        active = None
        x, last_input = _both(
            ops.convolution(
                skips.pop(0),
                skip.weight,
                skip.bias,
                residual=x,
                residual_scale=scale,
                activation=last.activation,
            )
        )
        found = ops.convolution(
            last_input,
            last.weight,
            last.bias,
            residual=x,
            activation=None if after is None else after.activation,
        )
        del last_input
        x, active = _rows(found), found.activated
        del found
    return x


def _rows(found: Activated) -> Tensor:
    """Return rows that were requested."""
    assert found.rows is not None
    return found.rows


def _both(found: Activated) -> tuple[Tensor, Tensor]:
    """Return rows and activated rows, both of which were requested."""
    assert found.activated is not None
    return _rows(found), found.activated


class PositionTables(NamedTuple):
    """Angles [S, D / 2] of positions, and indices of distances, for a length."""

    cos: Tensor
    sin: Tensor
    levels: Tensor

    @classmethod
    def of(cls, length: int, dim: int, device: torch.device) -> PositionTables:
        """Compute the encoding for positions of the transformer; this waits for the device."""
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
    ops: GenomicOperators, w: TowerWeights, x: Tensor, organism: Tensor, tables: PositionTables
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
    ops: GenomicOperators, w: Block, rows: Tensor, x: Tensor, bias: Tensor, tables: PositionTables
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
    ops: GenomicOperators, w: PairUpdate, x: Tensor, pair: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the pairs and the biases [L, B, P, P, H] of this block and perhaps the next."""
    scale, shift, eps = w.norm
    assert shift is not None
    bins, activated = ops.pair_pool(x, w.shift, scale, shift, eps, BIN)
    terms = functional.linear(bins, w.bins, w.bins_bias)
    scores = ops.pair_scores(terms, index, PAIR_HEADS, LEVELS)
    y = functional.linear(activated, w.activated)
    pair, qkv = ops.pair_attention_inputs(
        scores, y, pair, w.scores, w.scores_bias, w.eps, w.qkv, w.qkv_bias
    )
    n_bins = pair.shape[1]
    q, k, v = (part[:, None] for part in qkv.flatten(0, 2).chunk(3, 1))
    row_ptr = torch.arange(
        0, pair[..., 0].numel() + 1, n_bins, dtype=torch.int32, device=pair.device
    )
    attended = ops.attention(q, k, v, row_ptr, n_bins).view(pair.shape)
    return ops.pair_mlp(pair, attended, w.mlp_eps, w.mlp, w.biases)


def embed_bins(ops: GenomicOperators, w: Embedder, x: Tensor, organism: Tensor) -> Tensor:
    """Return the embeddings [B, S / 128, N] of bins of the sequence."""
    return ops.binned_linear(x, w.weight, w.shift[organism][:, None])


def embed_bases(
    ops: GenomicOperators, w: Embedder, x: Tensor, bins: Tensor, organism: Tensor
) -> Tensor:
    """Return the embeddings [B, S, N] of all positions, given those of bins."""
    bias = w.shift[organism][:, None]
    if w.skip is not None:
        bias = functional.linear(bins, w.skip) + bias
    return ops.binned_linear(x, w.weight, bias)
