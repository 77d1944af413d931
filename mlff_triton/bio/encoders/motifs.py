"""Parts of Transformer encoders that no adapter knows as a whole.

Whoever replaces a part by the first of `MOTIFS` that fits leaves alone what is in it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from mlff_triton.bio.encoders.encoder import Layer, Linear, Norm
from mlff_triton.bio.encoders.packing import Packing
from mlff_triton.bio.encoders.parts import ChainForward, LayerNormForward, Motif, Operators
from mlff_triton.bio.encoders.structure import activation_of, is_norm, is_plain
from mlff_triton.bio.forward import FastForward, Weights


class SequencesForward(Motif[Weights]):
    """A part that takes sequences, [B, L, C] or [L, B, C], and a mask of their padding."""

    mask = "src_key_padding_mask"

    @property
    @abstractmethod
    def attention(self) -> Any:
        """Its attention, or the first."""

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Nothing is served but sequences, and masks that are True where there is padding."""
        if reason := super().refusal(arguments):
            return reason
        first = self._names[0]
        for name, value in arguments.items():
            if name not in (first, self.mask) and value is not None and value is not False:
                return f"{name} was asked for"
        x, mask = arguments[first], arguments.get(self.mask)
        if x.dim() != 3:
            return "its input is no batch of sequences"
        shape = x.shape[:2] if self.attention.batch_first else x.shape[1::-1]
        if mask is not None and (mask.dtype != torch.bool or mask.shape != shape):
            return "its padding mask is not boolean [B, L]"
        return None

    def run(self, weights: Weights, x: Tensor, arguments: Mapping[str, Any]) -> Any:
        """Sequences like those given; zero where there is padding."""
        mask, batch_first = arguments.get(self.mask), self.attention.batch_first
        given = x if batch_first else x.transpose(0, 1)
        kept = None if mask is None else ~mask
        packing = Packing.of(kept, (given.shape[0], given.shape[1]), x.device)
        rows = self.run_rows(weights, packing.pack(given).to(self.dtype), packing)
        y = packing.unpack(rows).to(x.dtype)
        return y if batch_first else y.transpose(0, 1).contiguous()

    @abstractmethod
    def run_rows(self, weights: Weights, x: Tensor, packing: Packing) -> Tensor:
        """Rows [T, C] of sequences to others."""


class AttentionForward(SequencesForward[tuple[Linear, Linear]]):
    """Attention of sequences to themselves."""

    supported = "torch.nn.MultiheadAttention"
    mask = "key_padding_mask"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether it is one, without keys and values of its own."""
        own: Any = module
        return (
            is_plain(own, nn.MultiheadAttention)
            and is_plain(own.out_proj, nn.Linear, NonDynamicallyQuantizableLinear)
            and own.in_proj_weight is not None
            and own.bias_k is None
            and not own.add_zero_attn
        )

    @property
    def attention(self) -> Any:
        """The module itself."""
        return self.module

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Attention to something else, and its weights, are not served."""
        query, key, value = (arguments.get(name) for name in ("query", "key", "value"))
        if not query is key is value:
            return "query, key and value are not one tensor"
        harmless = ("key", "value", "average_attn_weights")
        others = {name: x for name, x in arguments.items() if name not in harmless}
        return super().refusal({"need_weights": True} | others)

    def collect(self) -> tuple[Linear, Linear]:
        """Before and after the attention."""
        qkv, out = _attention_weights(self.module)
        return qkv.to(self.dtype), out.to(self.dtype)

    def run(
        self, weights: tuple[Linear, Linear], x: Tensor, arguments: Mapping[str, Any]
    ) -> tuple[Tensor, None]:
        """What is attended to, and no weights."""
        return super().run(weights, x, arguments), None

    def run_rows(self, weights: tuple[Linear, Linear], x: Tensor, packing: Packing) -> Tensor:
        """Rows that are attended to."""
        return _attend(self.operators, x, packing, *weights, self.module.num_heads)


class LayersForward(SequencesForward[tuple[Layer, ...]]):
    """The whole encoder of PyTorch, or a layer of it."""

    supported = "torch.nn.TransformerEncoder"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether it is one, and all in it as PyTorch makes it."""
        layers, norm = _layers(module), getattr(module, "norm", None)
        return (
            bool(layers)
            and all(map(_is_known, layers))
            and len({layer.self_attn.batch_first for layer in layers}) == 1
            and (norm is None or is_norm(norm))
        )

    @property
    def attention(self) -> Any:
        """That of the first layer."""
        return _layers(self.module)[0].self_attn

    def collect(self) -> tuple[Layer, ...]:
        """The layers' weights."""
        return tuple(_layer_weights(layer, self.dtype) for layer in _layers(self.module))

    def run_rows(self, weights: tuple[Layer, ...], x: Tensor, packing: Packing) -> Tensor:
        """Rows after the last layer, normalized if there is a norm."""
        operators = self.operators
        for module, layer in zip(_layers(self.module), weights, strict=True):
            x = _layer(operators, x, packing, module, layer)
        norm = getattr(self.module, "norm", None)
        return x if norm is None else operators.layer_norm(x, *Norm.of(norm).to(self.dtype))


MOTIFS: tuple[type[FastForward[Any]], ...] = (
    LayersForward,
    AttentionForward,
    ChainForward,
    LayerNormForward,
)
"""What a module may be, in order of priority."""


def looks_like_encoder(model: nn.Module) -> bool:
    """Whether there is attention in a model, or a stack of layers with normalizations."""
    for module in model.modules():
        if AttentionForward.fits(module):
            return True
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
            alike = len({type(layer) for layer in module}) == 1
            if alike and {nn.LayerNorm, nn.Linear} <= {type(part) for part in module[0].modules()}:
                return True
    return False


def _attention_weights(module: Any) -> tuple[Linear, Linear]:
    return Linear(module.in_proj_weight, module.in_proj_bias), Linear.of(module.out_proj)


def _attend(
    operators: Operators,
    x: Tensor,
    packing: Packing,
    qkv: Linear,
    out: Linear,
    heads: int,
    residual: Tensor | None = None,
) -> Tensor:
    """Attention of rows [T, C] to those of their own sequences."""
    q, k, v = operators.linear(x, *qkv).unflatten(-1, (3, heads, -1)).unbind(1)
    mixed = operators.attention(q, k, v, packing.row_ptr, packing.shape[1])
    return operators.linear(mixed.flatten(1), *out, residual=residual)


def _layers(module: Any) -> list[Any]:
    if is_plain(module, nn.TransformerEncoder):
        return list(module.layers)
    return [module] if is_plain(module, nn.TransformerEncoderLayer) else []


def _is_known(layer: Any) -> bool:
    return (
        is_plain(layer, nn.TransformerEncoderLayer)
        and AttentionForward.fits(layer.self_attn)
        and all(map(is_norm, (layer.norm1, layer.norm2)))
        and all(is_plain(linear, nn.Linear) for linear in (layer.linear1, layer.linear2))
        and activation_of(layer.activation) is not None
    )


def _layer_weights(layer: Any, dtype: torch.dtype) -> Layer:
    qkv, out = (weights.to(dtype) for weights in _attention_weights(layer.self_attn))
    norms = (Norm.of(norm).to(dtype) for norm in (layer.norm1, layer.norm2))
    up, down = (Linear.of(linear).to(dtype) for linear in (layer.linear1, layer.linear2))
    return Layer(next(norms), qkv, out, next(norms), up, down)


def _layer(operators: Operators, x: Tensor, packing: Packing, own: Any, weights: Layer) -> Tensor:
    """Rows [T, C] through a layer of an encoder."""
    first_norm, qkv, out, second_norm, up, down = weights

    def norm(rows: Tensor, weights: Norm, wanted: bool) -> Tensor:
        return operators.layer_norm(rows, *weights) if wanted else rows

    before, after, heads = own.norm_first, not own.norm_first, own.self_attn.num_heads
    given = norm(x, first_norm, before)
    x = norm(_attend(operators, given, packing, qkv, out, heads, residual=x), first_norm, after)
    given = norm(x, second_norm, before)
    hidden = operators.linear(given, *up, activation_of(own.activation))
    return norm(operators.linear(hidden, *down, residual=x), second_norm, after)
