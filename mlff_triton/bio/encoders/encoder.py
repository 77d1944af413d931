"""Transformer encoders over packed rows: what models of many makers have in common.

Every layer has self-attention and a network of two linear maps, each added to what went into it. A
normalization comes before each of both, or after each sum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.kernels.common.reference import activations
from mlff_triton.kernels.ops.reference.attention import attention
from mlff_triton.kernels.types.packed_rows import PackedRows


class Norm(NamedTuple):
    """A layer normalization; weight and bias [C]."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, module: nn.LayerNorm) -> Norm:
        """That of a module."""
        return cls(module.weight, module.bias, module.eps)

    def to(self, dtype: torch.dtype) -> Norm:
        """The same in a dtype."""
        return Norm(self.weight.to(dtype), self.bias.to(dtype), self.eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Of rows [..., C]."""
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class Linear(NamedTuple):
    """A linear map; weight [N, K] and bias [N]."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *modules: nn.Linear) -> Linear:
        """Those of modules, one below the other."""
        parts = [cls(module.weight, module.bias) for module in modules]
        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([p.weight for p in parts]), torch.cat([p.shift for p in parts]))

    @property
    def shift(self) -> Tensor:
        """The bias; zero if there is none."""
        return self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias

    def to(self, dtype: torch.dtype) -> Linear:
        """The same in a dtype."""
        return Linear(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))

    def __call__(self, x: Tensor) -> Tensor:
        """Of rows [..., K], to [..., N]."""
        return nn.functional.linear(x, self.weight, self.bias)


class Layer(NamedTuple):
    """A layer; ``qkv`` maps to queries, keys and values, [3 H D, C]."""

    attention_norm: Norm
    qkv: Linear
    out: Linear
    network_norm: Norm
    up: Linear
    down: Linear

    def to(self, dtype: torch.dtype) -> Layer:
        """The same in a dtype."""
        return Layer(
            self.attention_norm.to(dtype),
            self.qkv.to(dtype),
            self.out.to(dtype),
            self.network_norm.to(dtype),
            self.up.to(dtype),
            self.down.to(dtype),
        )


class Layers:
    """Layers in their order, each put together when its turn comes.

    Queries, keys and values of all of them at once would take a quarter of the model's memory.

    Parameters
    ----------
    read : callable
        A module's layer.
    modules : collection of torch.nn.Module
        In their order.
    """

    def __init__(self, read: Callable[[Any], Layer], modules: Collection[Any]) -> None:
        self._read, self._modules = read, modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Layer]:
        return map(self._read, self._modules)


class Embedding(NamedTuple):
    """What tokens become before the first layer.

    Attributes
    ----------
    word : [V, C]
        A vector for each token.
    position : [P, C] or None
        A vector for each position, added to it.
    kind : [Y, C] or None
        A vector for each type of token, added likewise.
    norm : Norm or None
        Normalization of the sum.
    mask_token : int or None
        With token dropout: masked tokens are zero, and the others are scaled up, as in training.
    count_padding : bool
        Whether padding counts in the share of masked tokens, by which they are scaled.
    """

    word: Tensor
    position: Tensor | None
    kind: Tensor | None
    norm: Norm | None
    mask_token: int | None
    count_padding: bool = False

    def to(self, dtype: torch.dtype) -> Embedding:
        """The same in a dtype."""
        position, kind = (t if t is None else t.to(dtype) for t in (self.position, self.kind))
        norm = self.norm and self.norm.to(dtype)
        word = self.word.to(dtype)
        return self._replace(word=word, position=position, kind=kind, norm=norm)


class Encoder(NamedTuple):
    """A Transformer encoder.

    Attributes
    ----------
    embedding : Embedding
        Of tokens.
    layers : collection of Layer
        In order.
    heads : int
        Of the attention.
    norm_first : bool
        Whether layers normalize what goes into their parts, and not the sums.
    activation : str
        As for `mlff_triton.kernels.ops.linear.linear`.
    frequencies : [D / 2] or None
        Of rotary position embeddings, radians a position.
    norm : Norm or None
        After the last layer.
    """

    embedding: Embedding
    layers: Layers | tuple[Layer, ...]
    heads: int
    norm_first: bool
    activation: str
    frequencies: Tensor | None
    norm: Norm | None

    def to(self, dtype: torch.dtype) -> Encoder:
        """The same in a dtype; angles stay as they are."""
        return self._replace(
            embedding=self.embedding.to(dtype),
            layers=tuple(layer.to(dtype) for layer in self.layers),
            norm=self.norm and self.norm.to(dtype),
        )


def exact_frequencies(found: Tensor) -> Tensor:
    """Frequencies of rotary embeddings [D / 2], as they were before a model was made half as exact.

    What is rounded to half precision is off by radians at the end of long sequences.
    """
    half = len(found)
    usual = 10000.0 ** -(torch.arange(half, dtype=torch.float64, device=found.device) / half)
    close = 2 * torch.finfo(found.dtype).eps * usual
    rounded = found.element_size() == 2 and bool(((usual - found).abs() <= close).all())
    return usual.float() if rounded else found


def rotate(x: Tensor, frequencies: Tensor, position: Tensor) -> Tensor:
    """Turn the pairs (i, i + D / 2) of rows [T, H, D] by ``position`` times their frequencies."""
    angles = position[:, None] * frequencies.to(
        torch.promote_types(frequencies.dtype, torch.float32)
    )
    cos, sin = (f(angles).to(x.dtype)[:, None] for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def encode(
    encoder: Encoder, x: Tensor, packed: PackedRows, length: int, keep: Collection[int] = ()
) -> tuple[Tensor, dict[int, Tensor]]:
    """Rows [T, C] through all layers, and what came out of some; 0 is what went in.

    ``length`` is that of the longest sequence, or more.
    """
    kept = {0: x} if 0 in keep else {}
    for number, layer in enumerate(encoder.layers, 1):
        given = layer.attention_norm(x) if encoder.norm_first else x
        q, k, v = layer.qkv(given).unflatten(-1, (3, encoder.heads, -1)).unbind(1)
        if encoder.frequencies is not None:
            q, k = (rotate(each, encoder.frequencies, packed.place) for each in (q, k))
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
