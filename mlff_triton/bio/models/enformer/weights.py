"""Weights of Enformer, laid out for the operators on DNA sequences.

Batch normalizations become factors and shifts of the results that they normalize.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.weights import converted, exact, exact_norm, wide_dtype
from mlff_triton.kernels.genomics.types import ALIGNMENT, Activation
from mlff_triton.kernels.types.norm import Norm


class Block(NamedTuple):
    """A convolution, a pointwise convolution with a residual connection, and attention pooling.

    Attributes
    ----------
    weight, bias : [N, T, K], [N]
        First convolution. That of the stem multiplies windows of the sequence, with T = 1.
    activation : Activation
        Normalization of its result.
    pointwise, pointwise_bias : [N, L], [N]
        Pointwise convolution. That of the stem has L > N: it multiplies activated rows and windows,
        which recomputes the residual, so that it need not be stored.
    logits : [N, N]
        Map to the logits of the pooling.
    following : Activation or None
        Normalization of the pooled rows by the next block; None before the transformer.
    """

    weight: Tensor
    bias: Tensor
    activation: Activation
    pointwise: Tensor
    pointwise_bias: Tensor
    logits: Tensor
    following: Activation | None


class Layer(NamedTuple):
    """A layer of the transformer with H heads.

    Attributes
    ----------
    norm, network_norm : Norm
        Normalizations before attention and before the network.
    qkv, qkv_bias : [H (2 D + V), C], [H (2 D + V)]
        Maps to queries, keys and values of all heads; the bias is zero.
    content_bias, position_bias : [H, D]
        Biases of queries.
    scale : float
        Factor of queries.
    out : [C, H V]
        Map of the attended values.
    up, up_bias, down : [U, C], [U], [C, U]
        Network.
    middle_shift, shift : [C]
        Sums of the biases of this layer and all earlier ones, to be added to rows after attention
        and after the network.
    positions : [H D, P]
        Map from positional features to keys, at least in float32.
    """

    norm: Norm
    qkv: Tensor
    qkv_bias: Tensor
    content_bias: Tensor
    position_bias: Tensor
    scale: float
    out: Tensor
    network_norm: Norm
    up: Tensor
    up_bias: Tensor
    down: Tensor
    middle_shift: Tensor
    shift: Tensor
    positions: Tensor


class Head(NamedTuple):
    """An output head, padded to a multiple of eight tracks: weight [P, C], bias [P] and tracks."""

    weight: Tensor
    bias: Tensor
    tracks: int


class EnformerWeights(NamedTuple):
    """Weights of a model.

    Attributes
    ----------
    stem : Block
        First block.
    tower : list of Block
        Blocks after the stem.
    layers : list of Layer
        Layers of the transformer.
    activation : Activation
        Normalization after the transformer.
    final, final_bias : [E, 1, C], [E]
        Pointwise convolution to embeddings.
    final_activation : Activation
        Activation of the embeddings, without a normalization.
    heads : dict of str to Head
        Output heads.
    taps : int
        Number of positions in a window of the stem.
    """

    stem: Block
    tower: list[Block]
    layers: list[Layer]
    activation: Activation
    final: Tensor
    final_bias: Tensor
    final_activation: Activation
    heads: dict[str, Head]
    taps: int

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> EnformerWeights:
        """Read the weights of a model: matrices in a dtype, vectors at least in float32."""
        convolutions = [block[0] for block in model.conv_tower]
        norms = [_batch_norm(each[0]) for each in convolutions]
        following = [*norms, None]
        norm, _, final = model.final_pointwise[1]
        ones = torch.ones_like(exact(final.bias))
        weights = cls(
            stem=_stem(model.stem, following[0], dtype),
            tower=[
                _block(convolution[2], block[1], block[2], after, dtype)
                for convolution, block, after in zip(
                    convolutions, model.conv_tower, following[1:], strict=True
                )
            ],
            layers=_layers(model.transformer, dtype),
            activation=_batch_norm(norm),
            final=_taps(final),
            final_bias=exact(final.bias).to(wide_dtype(dtype)),
            final_activation=Activation(ones, torch.zeros_like(ones)),
            heads={name: _head(head[0]) for name, head in model.heads.items()},
            taps=model.stem[0].kernel_size[0],
        )
        return converted(weights, dtype)


def _batch_norm(norm: Any) -> Activation:
    scale = exact(norm.weight) / (exact(norm.running_var) + norm.eps).sqrt()
    return Activation(scale, exact(norm.bias) - exact(norm.running_mean) * scale)


def _taps(convolution: nn.Conv1d) -> Tensor:
    """Return the weight [N, T, K] of a convolution."""
    return exact(convolution.weight).transpose(1, 2)


def _block(
    convolution: Any, residual: Any, pool: Any, following: Activation | None, dtype: torch.dtype
) -> Block:
    norm, _, pointwise = residual.fn
    wide = wide_dtype(dtype)
    block = Block(
        weight=_taps(convolution),
        bias=exact(convolution.bias).to(wide),
        activation=_batch_norm(norm),
        pointwise=exact(pointwise.weight).flatten(1),
        pointwise_bias=exact(pointwise.bias).to(wide),
        logits=exact(pool.to_attn_logits.weight).flatten(1),
        following=following,
    )
    return converted(block, dtype)


def _stem(stem: Any, following: Activation | None, dtype: torch.dtype) -> Block:
    """Read the stem, whose convolution multiplies windows padded with zeros at their end."""
    convolution, residual, pool = stem
    block = _block(convolution, residual, pool, following, dtype)
    weight = block.weight.flatten(1)
    weight = nn.functional.pad(weight, (0, -weight.shape[1] % ALIGNMENT))
    bias = exact(convolution.bias) + exact(residual.fn[2].bias)
    return block._replace(
        weight=weight[:, None],
        pointwise=torch.cat([block.pointwise, weight], 1),
        pointwise_bias=bias.to(block.bias.dtype),
    )


def _layers(transformer: Any, dtype: torch.dtype) -> list[Layer]:
    wide = wide_dtype(dtype)
    layers = []
    total: Tensor | int = 0
    for attention_part, network_part in transformer:
        norm, attention, _ = attention_part.fn
        network_norm, up, _, _, down, _ = network_part.fn
        middle = total + exact(attention.to_out.bias)
        total = middle + exact(down.bias)
        maps = attention.to_q, attention.to_k, attention.to_v
        qkv = torch.cat([exact(each.weight) for each in maps])
        biases = attention.rel_content_bias, attention.rel_pos_bias
        content, position = (exact(bias)[0, :, 0] for bias in biases)
        layer = Layer(
            norm=converted(exact_norm(norm), wide),
            qkv=qkv,
            qkv_bias=qkv.new_zeros(len(qkv)),
            content_bias=content,
            position_bias=position,
            scale=float(attention.scale),
            out=exact(attention.to_out.weight),
            network_norm=converted(exact_norm(network_norm), wide),
            up=exact(up.weight),
            up_bias=exact(up.bias),
            down=exact(down.weight),
            middle_shift=middle.to(wide),
            shift=total.to(wide),
            positions=exact(attention.to_rel_k.weight).to(wide),
        )
        layers.append(converted(layer, dtype))
    return layers


def _head(linear: nn.Linear) -> Head:
    tracks = linear.out_features
    missing = -tracks % ALIGNMENT
    weight = nn.functional.pad(exact(linear.weight), (0, 0, 0, missing))
    return Head(weight, nn.functional.pad(exact(linear.bias), (0, missing)), tracks)
