"""Weights of Transformer encoders as plain tuples, the same for models from every source.

Every layer has self-attention and a network of two linear maps, each with a residual connection.
Layer normalization is applied either to the input of both (pre-norm) or to both sums (post-norm).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Norm(NamedTuple):
    """Weights of a layer normalization: weight [C], bias [C] and eps."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, module: nn.LayerNorm) -> Norm:
        """Read the weights of a module."""
        return cls(module.weight, module.bias, module.eps)

    def to(self, dtype: torch.dtype) -> Norm:
        """Convert the weights to a dtype."""
        return Norm(self.weight.to(dtype), self.bias.to(dtype), self.eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize rows [..., C]."""
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class Linear(NamedTuple):
    """Weights of a linear map: weight [N, K] and bias [N]."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *modules: nn.Linear) -> Linear:
        """Read the weights of modules and concatenate their outputs."""
        parts = [cls(module.weight, module.bias) for module in modules]
        if len(parts) == 1:
            return parts[0]
        weight = torch.cat([part.weight for part in parts])
        return cls(weight, torch.cat([part.bias_or_zeros for part in parts]))

    @property
    def bias_or_zeros(self) -> Tensor:
        """Bias [N]; zeros if there is none."""
        return self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias

    def to(self, dtype: torch.dtype) -> Linear:
        """Convert the weights to a dtype."""
        return Linear(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows [..., K] to [..., N]."""
        return nn.functional.linear(x, self.weight, self.bias)


class Layer(NamedTuple):
    """Weights of a layer; ``qkv`` maps to queries, keys and values, [3 H D, C]."""

    attention_norm: Norm
    qkv: Linear
    out: Linear
    network_norm: Norm
    up: Linear
    down: Linear

    def to(self, dtype: torch.dtype) -> Layer:
        """Convert the weights to a dtype."""
        return Layer(
            self.attention_norm.to(dtype),
            self.qkv.to(dtype),
            self.out.to(dtype),
            self.network_norm.to(dtype),
            self.up.to(dtype),
            self.down.to(dtype),
        )


class LazyLayers:
    """Layers in order, each read from its module when the iteration reaches it.

    Concatenating the queries, keys and values of all layers at once would take a quarter of the
    model's memory.

    Parameters
    ----------
    read : callable
        Reads the `Layer` of a module.
    modules : collection of torch.nn.Module
        Modules of the layers, in order.
    """

    def __init__(self, read: Callable[[Any], Layer], modules: Collection[Any]) -> None:
        self._read, self._modules = read, modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Layer]:
        return map(self._read, self._modules)


class Embedding(NamedTuple):
    """Weights of the embedding of tokens.

    Attributes
    ----------
    word : [V, C]
        Vector of each token.
    position : [P, C] or None
        Vector of each position, added to that of the token.
    kind : [Y, C] or None
        Vector of each token type, added to the sum.
    norm : Norm or None
        Normalization of the sum.
    mask_token : int or None
        Mask token, for models trained with token dropout: masked tokens become zero, and the
        others are scaled up as in training.
    count_padding : bool
        If True, padding counts as unmasked in the share of masked tokens, which sets the scale.
    """

    word: Tensor
    position: Tensor | None
    kind: Tensor | None
    norm: Norm | None
    mask_token: int | None
    count_padding: bool = False

    def to(self, dtype: torch.dtype) -> Embedding:
        """Convert the weights to a dtype."""
        position, kind = (t if t is None else t.to(dtype) for t in (self.position, self.kind))
        norm = self.norm and self.norm.to(dtype)
        word = self.word.to(dtype)
        return self._replace(word=word, position=position, kind=kind, norm=norm)


class EncoderWeights(NamedTuple):
    """Weights of a Transformer encoder.

    Attributes
    ----------
    embedding : Embedding
        Embedding of tokens.
    layers : collection of Layer
        Layers in order.
    heads : int
        Number of attention heads.
    norm_first : bool
        If True, the inputs of attention and network are normalized, otherwise the sums.
    activation : str
        Activation, named as in `mlff_triton.kernels.ops.linear.linear`.
    frequencies : [D / 2] or None
        Frequencies of rotary position embeddings, in radians per position.
    norm : Norm or None
        Normalization after the last layer.
    """

    embedding: Embedding
    layers: LazyLayers | tuple[Layer, ...]
    heads: int
    norm_first: bool
    activation: str
    frequencies: Tensor | None
    norm: Norm | None

    def to(self, dtype: torch.dtype) -> EncoderWeights:
        """Convert the weights to a dtype, except the rotary frequencies."""
        return self._replace(
            embedding=self.embedding.to(dtype),
            layers=tuple(layer.to(dtype) for layer in self.layers),
            norm=self.norm and self.norm.to(dtype),
        )


def exact_frequencies(found: Tensor) -> Tensor:
    """Recover rotary frequencies [D / 2] that were rounded when a model was cast to half precision.

    At the end of long sequences, angles from rounded frequencies are off by radians.
    """
    half = len(found)
    usual = 10000.0 ** -(torch.arange(half, dtype=torch.float64, device=found.device) / half)
    tolerance = 2 * torch.finfo(found.dtype).eps * usual
    rounded = found.element_size() == 2 and bool(((usual - found).abs() <= tolerance).all())
    return usual.float() if rounded else found
