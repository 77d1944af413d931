"""Weights of the transformer of AlphaGenome, with normalizations folded into linear maps.

Rows between blocks are stored without the biases of all blocks so far, so that an update only adds
a product to them. The maps that read the rows include the biases.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.core.weights import converted, exact, exact_norm, wide_dtype
from mlff_triton.bio.models.alpha_genome.weights import normalization
from mlff_triton.kernels.genomics.types import PairBiases, PairMLP
from mlff_triton.kernels.types.norm import Norm

BIN = 16
"""Positions of the transformer per bin of the pairs."""

LEVELS = 64
"""Number of different encodings of distances between bins."""

MAX_DISTANCE = 8192
PAIR_HEADS = 32
_THRESHOLDS = 32


class PairUpdate(NamedTuple):
    """Weights of an update of the pairs.

    Attributes
    ----------
    shift : float32 [C]
        Sum of the biases of all earlier blocks, to be added to rows.
    norm : Norm
        Normalization of the bins.
    bins, bins_bias : [N, C], [N]
        Map of bins to queries, keys and their products with the encoding of distances.
    activated : [2 D, C]
        Map of activated bins to terms of the first and the second bin of a pair.
    scores, scores_bias : [H, D], [D]
        Map of scores.
    eps : float
        Epsilon of the normalization before attention.
    qkv, qkv_bias : [D, 3 D], [3 D]
        Map of normalized pairs.
    mlp_eps : float
        Epsilon of the normalization before the MLP.
    mlp : PairMLP
        MLP of pairs.
    biases : PairBiases
        Biases for the attention of this block, and of the next block if it has no update.
    """

    shift: Tensor
    norm: Norm
    bins: Tensor
    bins_bias: Tensor
    activated: Tensor
    scores: Tensor
    scores_bias: Tensor
    eps: float
    qkv: Tensor
    qkv_bias: Tensor
    mlp_eps: float
    mlp: PairMLP
    biases: PairBiases


class Block(NamedTuple):
    """Weights of a block.

    Attributes
    ----------
    pair : PairUpdate or None
        Update of the pairs.
    qkv, qkv_bias : [N, C], [N]
        Map to queries of all heads, keys and values.
    norms : tuple of three Norm
        Normalizations of queries, keys and values.
    out : [C, H V]
        Map of the attended values.
    up, up_bias, down : [K, C], [K], [C, K]
        MLP.
    """

    pair: PairUpdate | None
    qkv: Tensor
    qkv_bias: Tensor
    norms: tuple[Norm, Norm, Norm]
    out: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor


class TowerWeights(NamedTuple):
    """Weights of the transformer.

    Attributes
    ----------
    organisms : float32 [O, C]
        Embeddings of organisms, added to rows.
    blocks : list of Block
        Blocks.
    shift : float32 [C]
        Sum of the biases of all blocks, to be added to the result.
    """

    organisms: Tensor
    blocks: list[Block]
    shift: Tensor

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> TowerWeights:
        """Read the weights of a model, in a dtype."""
        wide = wide_dtype(dtype)
        blocks, source = [], list(model.tower.blocks)
        shift = torch.zeros_like(exact(model.organism_embed.weight[0]))
        for number, block in enumerate(source):
            served = [block, *source[number + 1 : number + 2]]
            if len(served) == 2 and served[1]["pair_update"] is not None:
                served.pop()
            update = block["pair_update"]
            pair = None if update is None else _pair_update(update, served, shift, wide)
            read, shift = _block(block, shift)
            blocks.append(converted(read._replace(pair=pair), dtype))
        return cls(exact(model.organism_embed.weight).to(wide), blocks, shift.to(wide))


def _block(block: Any, shift: Tensor) -> tuple[Block, Tensor]:
    """Read a block whose rows lack a shift; return it with the shift of its result."""
    mha, mlp = block["mha"], block["mlp"]
    heads = torch.cat([exact(p.weight) for p in (mha.q_proj, mha.k_proj, mha.v_proj)])
    scale, bias = normalization(mha.norm)
    qkv_bias = heads @ (scale * shift + bias)
    out, shift = _normalized_map(mha.linear_embedding, mha.final_norm, shift)
    up_scale, up_bias = normalization(mlp.norm)
    up = exact(mlp.fc1.weight)
    hidden_bias = up @ (up_scale * shift + up_bias) + exact(mlp.fc1.bias)
    down, shift = _normalized_map(mlp.fc2, mlp.final_norm, shift)
    norms = exact_norm(mha.norm_q), exact_norm(mha.norm_k), exact_norm(mha.norm_v)
    return Block(None, heads * scale, qkv_bias, norms, out, up * up_scale, hidden_bias, down), shift


def _normalized_map(linear: Any, norm: Any, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Fold a normalization into the map before it; return its weight, and its bias plus a shift."""
    scale, bias = normalization(norm)
    return scale[:, None] * exact(linear.weight), shift + scale * exact(linear.bias) + bias


def _pair_update(update: Any, served: list[Any], shift: Tensor, wide: torch.dtype) -> PairUpdate:
    bins, row, mlp = update.seq2pair, update.row_attn, update.pair_mlp
    weight, bias = _bin_maps(bins)
    qkv = torch.cat([exact(p.weight) for p in (row.linear_q, row.linear_k, row.linear_v)])
    qkv_bias = qkv @ exact(row.norm.bias)
    qkv_bias[-len(row.linear_v.bias) :] += exact(row.linear_v.bias)
    up = exact(mlp.linear1.weight)
    scales, shifts, maps = map(torch.stack, zip(*map(_bias_maps, served), strict=True))
    return PairUpdate(
        shift=shift.to(wide),
        norm=exact_norm(bins.norm_seq2pair),
        bins=weight,
        bins_bias=bias,
        activated=torch.cat([exact(bins.linear_y_q.weight), exact(bins.linear_y_k.weight)]),
        scores=exact(bins.linear_pair.weight).T,
        scores_bias=exact(bins.linear_pair.bias),
        eps=row.norm.eps,
        qkv=(qkv * exact(row.norm.weight)).T,
        qkv_bias=qkv_bias,
        mlp_eps=mlp.norm.eps,
        mlp=PairMLP(
            (up * exact(mlp.norm.weight)).T,
            up @ exact(mlp.norm.bias) + exact(mlp.linear1.bias),
            exact(mlp.linear2.weight).T,
            exact(mlp.linear2.bias),
        ),
        biases=PairBiases(scales.to(wide), shifts.to(wide), maps),
    )


def _bias_maps(block: Any) -> tuple[Tensor, Tensor, Tensor]:
    bias = block["attn_bias"]
    return *normalization(bias.norm), exact(bias.proj.weight).T


def _bin_maps(bins: Any) -> tuple[Tensor, Tensor]:
    """Return the map of bins to q, k and their products with all encodings of distances."""
    q, k = exact(bins.linear_q.weight), exact(bins.linear_k.weight)
    position = bins.linear_pos_features
    encodings = level_features(q.device) @ exact(position.weight).T + exact(position.bias)
    encodings = encodings.unflatten(1, (PAIR_HEADS, -1)) / 2  # [U, H, D]
    weights, biases = [q, k], [q.new_zeros(2 * len(q))]
    for weight, bias in ((q, bins.q_r_bias), (k, bins.k_r_bias)):
        heads = weight.unflatten(0, (PAIR_HEADS, -1))
        weights.append(torch.einsum("uhd,hdc->huc", encodings, heads).flatten(0, 1))
        biases.append(torch.einsum("uhd,hd->hu", encodings, exact(bias)[0, 0]).flatten())
    return torch.cat(weights), torch.cat(biases)


def level_features(device: torch.device) -> Tensor:
    """Return the features [U, 64] of distances with each index of `level_index`, in float64."""
    level = torch.arange(_THRESHOLDS, device=device)
    inside = (torch.arange(_THRESHOLDS, device=device) >= _THRESHOLDS - level[:, None]).double()
    zero = torch.cat([torch.ones_like(inside[0]), torch.zeros_like(inside[0])])
    features = [torch.cat([inside, sign * inside], 1) for sign in (1, -1)]
    features[1][0] = zero
    return torch.cat(features)


def level_index(n_bins: int, device: torch.device) -> Tensor:
    """Return the index of the encoding of each distance from 1 - P to P - 1, int32 [2 P - 1].

    The model compares distances with 32 thresholds; the first one is 1. Indices count the
    thresholds beyond a distance, from 0 to 31. For negative distances, 32 is added to counts above
    0. The index 32 itself stands for the distance 0.
    """
    steps = torch.arange(_THRESHOLDS, dtype=torch.float32, device="cpu")
    growth = math.log(MAX_DISTANCE // BIN - _THRESHOLDS + 1) / _THRESHOLDS
    thresholds = steps + torch.exp(steps * growth)
    distance = torch.arange(1 - n_bins, n_bins, device="cpu")
    level = (thresholds > distance.abs()[:, None]).sum(1)
    level += _THRESHOLDS * ((distance < 0) & (level > 0))
    return level.int().to(device)
