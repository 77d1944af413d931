"""Weights of Enformer, laid out for the operators on DNA sequences.

Batch normalizations become factors and shifts of the results that they normalize.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.kernels.types.convolution import Activation
from mlff_triton.kernels.types.norm import Norm

ALIGNMENT = 8
"""Channels of an operand are a multiple of this."""


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
        which computes the residual anew, so that it need not be stored.
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
        Biases of this layer and all before it, to be added to rows after attention and after the
        network.
    positions : [H D, P]
        Map from positional features to keys, in the exact dtype.
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
        Blocks after it.
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
        Positions of a window of the stem.
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
        norms = [_batch_norm(each[0], dtype) for each in convolutions]
        following = [*norms, None]
        norm, _, final = model.final_pointwise[1]
        embeddings = len(final.weight)
        exact = exact_dtype(dtype)
        options = {"dtype": exact, "device": final.weight.device}
        return cls(
            stem=_stem(model.stem, following[0], dtype),
            tower=[
                _block(convolution[2], block[1], block[2], after, dtype)
                for convolution, block, after in zip(
                    convolutions, model.conv_tower, following[1:], strict=True
                )
            ],
            layers=_layers(model.transformer, dtype),
            activation=_batch_norm(norm, dtype),
            final=_taps(final).to(dtype),
            final_bias=_exact(final.bias).to(exact),
            final_activation=Activation(
                torch.ones(embeddings, **options), torch.zeros(embeddings, **options)
            ),
            heads={name: _head(head[0], dtype) for name, head in model.heads.items()},
            taps=model.stem[0].kernel_size[0],
        )


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of vectors, sums and positions: float32 or float64."""
    return torch.promote_types(dtype, torch.float32)


def aligned(count: int) -> int:
    """Round a number of channels up to a multiple of `ALIGNMENT`."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def _exact(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, contiguous whatever the strides of the parameter are."""
    return tensor.detach().double().contiguous()


def _batch_norm(norm: Any, dtype: torch.dtype) -> Activation:
    scale = _exact(norm.weight) / (_exact(norm.running_var) + norm.eps).sqrt()
    shift = _exact(norm.bias) - _exact(norm.running_mean) * scale
    return Activation(scale.to(exact_dtype(dtype)), shift.to(exact_dtype(dtype)))


def _taps(convolution: nn.Conv1d) -> Tensor:
    """Return the weight [N, T, K] of a convolution."""
    return _exact(convolution.weight).transpose(1, 2).contiguous()


def _block(
    convolution: Any, residual: Any, pool: Any, following: Activation | None, dtype: torch.dtype
) -> Block:
    norm, _, pointwise = residual.fn
    exact = exact_dtype(dtype)
    return Block(
        weight=_taps(convolution).to(dtype),
        bias=_exact(convolution.bias).to(exact),
        activation=_batch_norm(norm, dtype),
        pointwise=_exact(pointwise.weight).flatten(1).to(dtype),
        pointwise_bias=_exact(pointwise.bias).to(exact),
        logits=_exact(pool.to_attn_logits.weight).flatten(1).to(dtype),
        following=following,
    )


def _stem(stem: Any, following: Activation | None, dtype: torch.dtype) -> Block:
    """Read the stem, whose convolution multiplies windows with zeros at their end."""
    convolution, residual, pool = stem
    block = _block(convolution, residual, pool, following, dtype)
    weight = block.weight.flatten(1)
    weight = nn.functional.pad(weight, (0, aligned(weight.shape[1]) - weight.shape[1]))
    bias = _exact(convolution.bias) + _exact(residual.fn[2].bias)
    return block._replace(
        weight=weight[:, None].contiguous(),
        pointwise=torch.cat([block.pointwise, weight], 1),
        pointwise_bias=bias.to(block.bias.dtype),
    )


def _layers(transformer: Any, dtype: torch.dtype) -> list[Layer]:
    exact = exact_dtype(dtype)
    layers = []
    total: Tensor | int = 0
    for attention_part, network_part in transformer:
        norm, attention, _ = attention_part.fn
        network_norm, up, _, _, down, _ = network_part.fn
        middle = total + _exact(attention.to_out.bias)
        total = middle + _exact(down.bias)
        maps = attention.to_q, attention.to_k, attention.to_v
        qkv = torch.cat([_exact(each.weight) for each in maps])
        biases = attention.rel_content_bias, attention.rel_pos_bias
        content, position = (_exact(bias)[0, :, 0].to(dtype).contiguous() for bias in biases)
        layers.append(
            Layer(
                norm=_layer_norm(norm, exact),
                qkv=qkv.to(dtype),
                qkv_bias=torch.zeros(len(qkv), dtype=dtype, device=qkv.device),
                content_bias=content,
                position_bias=position,
                scale=float(attention.scale),
                out=_exact(attention.to_out.weight).to(dtype),
                network_norm=_layer_norm(network_norm, exact),
                up=_exact(up.weight).to(dtype),
                up_bias=_exact(up.bias).to(dtype),
                down=_exact(down.weight).to(dtype),
                middle_shift=middle.to(exact),
                shift=total.to(exact),
                positions=_exact(attention.to_rel_k.weight).to(exact),
            )
        )
    return layers


def _layer_norm(norm: nn.LayerNorm, exact: torch.dtype) -> Norm:
    return _exact(norm.weight).to(exact), _exact(norm.bias).to(exact), norm.eps


def _head(linear: nn.Linear, dtype: torch.dtype) -> Head:
    tracks = linear.out_features
    missing = aligned(tracks) - tracks
    weight = nn.functional.pad(_exact(linear.weight), (0, 0, 0, missing))
    bias = nn.functional.pad(_exact(linear.bias), (0, missing))
    return Head(weight.to(dtype), bias.to(dtype), tracks)
