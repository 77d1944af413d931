"""Forward pass of an encoder over packed rows, in PyTorch."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from mlff_triton.bio.models.encoders.weights import EncoderWeights
from mlff_triton.kernels.common.reference import activations
from mlff_triton.kernels.ops.reference.attention import attention
from mlff_triton.kernels.transformer.types import PackedRows


def encode(
    encoder: EncoderWeights, x: Tensor, packed: PackedRows, length: int, keep: Collection[int] = ()
) -> tuple[Tensor, dict[int, Tensor]]:
    """Compute all layers of an encoder.

    Parameters
    ----------
    encoder : EncoderWeights
        Weights, of the dtype of ``x``.
    x : [T, C]
        Embedded tokens.
    packed : PackedRows
        Sequences and positions of the rows.
    length : int
        Length of the longest sequence, or more.
    keep : collection of int
        Layers whose outputs are returned too; 0 is the embedding.

    Returns
    -------
    hidden : [T, C]
        Output of the last layer, normalized if the encoder ends in a normalization.
    kept : dict of int to [T, C]
        Outputs of the layers in ``keep``.
    """
    kept = {0: x} if 0 in keep else {}
    for number, layer in enumerate(encoder.layers, 1):
        given = layer.attention_norm(x) if encoder.norm_first else x
        q, k, v = layer.qkv(given).unflatten(-1, (3, encoder.heads, -1)).unbind(1)
        if encoder.frequencies is not None:
            q, k = (rotate(each, encoder.frequencies, packed.position) for each in (q, k))
        mixed = attention(q, k, v, packed.row_ptr, length)
        x = x + layer.out(mixed.flatten(1))
        if not encoder.norm_first:
            x = layer.attention_norm(x)
        given = layer.network_norm(x) if encoder.norm_first else x
        x = x + layer.down(activations.activate(layer.up(given), encoder.activation))
        if not encoder.norm_first:
            x = layer.network_norm(x)
        if number in keep:
            kept[number] = x
    return x if encoder.norm is None else encoder.norm(x), kept


def rotate(x: Tensor, frequencies: Tensor, position: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D / 2) of rows [T, H, D] by their position times the frequencies."""
    angles = position[:, None] * frequencies.to(
        torch.promote_types(frequencies.dtype, torch.float32)
    )
    cos, sin = (f(angles).to(x.dtype)[:, None] for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
