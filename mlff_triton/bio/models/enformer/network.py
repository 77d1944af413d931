"""The computation of Enformer, with the operators of a backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mlff_triton.bio.models.enformer.weights import Block, EnformerWeights, Layer
from mlff_triton.kernels.genomics.protocol import GenomicOperators
from mlff_triton.kernels.genomics.types import Activated


def downsample(ops: GenomicOperators, w: EnformerWeights, sequence: Tensor) -> Tensor:
    """Compute the convolutional blocks for bases [B, S, 4]; return bins [B, S / 2**n, C]."""
    pairs = _stem_pairs(ops, w.stem, sequence, w.taps)
    x = _pool(ops, w.stem, pairs)
    for block in w.tower:
        assert x.activated is not None
        pairs = _pairs(ops, block, x.activated)
        x = _pool(ops, block, pairs)
    assert x.rows is not None
    return x.rows


def _pool(ops: GenomicOperators, block: Block, pairs: Tensor) -> Activated:
    """Pool pairs of rows, and activate the bins if another block follows."""
    following = block.following
    return ops.attention_pool(
        pairs, block.logits, activation=following, with_rows=following is None
    )


def _stem_pairs(ops: GenomicOperators, stem: Block, sequence: Tensor, taps: int) -> Tensor:
    """Return pairs of rows before the first pooling.

    One buffer holds the windows of the sequence beside the results of the first convolution.
    """
    channels, _, width = stem.weight.shape
    shape = (*sequence.shape[:2], channels + width)
    both = torch.empty(shape, dtype=stem.weight.dtype, device=sequence.device)
    activated, windows = both[..., :channels], both[..., channels:]
    ops.sequence_windows(sequence, taps, windows)
    ops.convolution(
        windows,
        stem.weight,
        stem.bias,
        activation=stem.activation,
        with_rows=False,
        out=activated,
    )
    return ops.paired_rows(both, stem.pointwise, stem.pointwise_bias, None)


def _pairs(ops: GenomicOperators, block: Block, x: Tensor) -> Tensor:
    """Return pairs of rows before the pooling of a block."""
    rows, activated = ops.convolution(x, block.weight, block.bias, activation=block.activation)
    assert activated is not None
    return ops.paired_rows(activated, block.pointwise, block.pointwise_bias, rows)


def embed(
    ops: GenomicOperators, w: EnformerWeights, bins: Tensor, keys: Sequence[Tensor], kept: slice
) -> Tensor:
    """Compute the transformer and the embeddings [B, kept, E] of bins [B, L, C].

    ``keys`` has the keys of relative positions [2 L - 1, H, D] of each layer. Overwrites the bins.
    """
    n_sequences, length, channels = bins.shape
    x = bins.flatten(0, 1)
    shift: Tensor | None = None
    for layer, relative in zip(w.layers, keys, strict=True):
        given = ops.normalize(x, layer.norm, shift).unflatten(0, (n_sequences, length))
        mixed = _attend(ops, layer, given, relative)
        if layer is w.layers[-1]:  # from here on, bins do not depend on each other
            x = x.unflatten(0, (n_sequences, length))[:, kept].reshape(-1, channels)
            mixed = mixed[:, kept]
        x = x.addmm_(mixed.reshape(len(x), -1), layer.out.T)
        given = ops.normalize(x, layer.network_norm, layer.middle_shift)
        hidden = ops.linear(given, layer.up, layer.up_bias, "relu")
        if layer is not w.layers[-1]:
            x = x.addmm_(hidden, layer.down.T)
            shift = layer.shift
    last = w.layers[-1]
    hidden, x = (t.unflatten(0, (n_sequences, -1)) for t in (hidden, x))
    activated = ops.convolution(
        hidden,
        last.down[:, None],
        last.shift,
        residual=x,
        activation=w.activation,
        with_rows=False,
    ).activated
    assert activated is not None
    embeddings = ops.convolution(
        activated, w.final, w.final_bias, activation=w.final_activation, with_rows=False
    ).activated
    assert embeddings is not None
    return embeddings


def _attend(ops: GenomicOperators, layer: Layer, given: Tensor, relative: Tensor) -> Tensor:
    """Return the attended values [B, L, H, V] of normalized bins [B, L, C]."""
    heads, size = layer.content_bias.shape
    qkv = ops.linear(given.flatten(0, 1), layer.qkv, layer.qkv_bias, "none")
    qkv = qkv.unflatten(0, given.shape[:2])
    columns = heads * size
    q, k, v = qkv.split([columns, columns, qkv.shape[2] - 2 * columns], 2)
    q, k, v = (t.unflatten(2, (heads, -1)) for t in (q, k, v))
    biases = layer.content_bias, layer.position_bias
    return ops.relative_attention(q, k, v, relative, *biases, layer.scale)


def predict(w: EnformerWeights, name: str, embeddings: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute the tracks [B, L, N] of a head for embeddings [B, L, E]."""
    head = w.heads[name]
    logits = functional.linear(embeddings, head.weight, head.bias)
    return functional.softplus(logits[..., : head.tracks].to(dtype))
