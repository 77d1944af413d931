"""Adapters for parts of encoders that act on sequences: PyTorch's attention and layers.

They serve encoders that no adapter supports as a whole.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from mlff_triton.bio.core.fast_forward import Weights
from mlff_triton.bio.core.packing import find_rows, pack, unpack
from mlff_triton.bio.core.recognition import is_plain, is_unmodified
from mlff_triton.bio.models.encoders.row_parts import PartForward
from mlff_triton.bio.models.encoders.torch_modules import activation_of, is_norm
from mlff_triton.bio.models.encoders.weights import Layer, Linear, Norm
from mlff_triton.kernels.transformer.protocol import TransformerOperators


class SequencePartForward(PartForward[Weights]):
    """Base class for parts that take sequences, [B, L, C] or [L, B, C], and a padding mask."""

    mask = "src_key_padding_mask"
    """Name of the argument that is the padding mask."""

    @property
    @abstractmethod
    def attention(self) -> Any:
        """Attention module of the part, or the first of several."""

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse all arguments but sequences and boolean masks that are True for padding."""
        if reason := super().refusal(arguments):
            return reason
        first = self._names[0]
        for name, value in arguments.items():
            if name not in (first, self.mask) and value is not None and value is not False:
                return f"{name} is not supported"
        x, mask = arguments[first], arguments.get(self.mask)
        if x.dim() != 3:
            return "its input is not a batch of sequences [B, L, C]"
        shape = x.shape[:2] if self.attention.batch_first else x.shape[1::-1]
        if mask is not None and (mask.dtype != torch.bool or mask.shape != shape):
            return "its padding mask is not a boolean tensor [B, L]"
        return None

    def run(self, weights: Weights, x: Tensor, arguments: Mapping[str, Any]) -> Any:
        """Return sequences in the layout of ``x``, zero for padding."""
        padding, batch_first = arguments.get(self.mask), self.attention.batch_first
        given = x if batch_first else x.transpose(0, 1)
        batch, length = given.shape[:2]
        if padding is None:
            rows = given.flatten(0, 1).to(self.dtype)
            row_ptr = length * torch.arange(batch + 1, dtype=torch.int32, device=x.device)
            rows = self.run_rows(weights, rows, row_ptr, length)
            y = rows.view(batch, length, rows.shape[1]).to(x.dtype)
        else:
            packed = find_rows(~padding)
            rows = pack(given, packed).to(self.dtype)
            rows = self.run_rows(weights, rows, packed.row_ptr, length)
            y = unpack(rows, packed, (batch, length)).to(x.dtype)
        return y if batch_first else y.transpose(0, 1).contiguous()

    @abstractmethod
    def run_rows(self, weights: Weights, x: Tensor, row_ptr: Tensor, length: int) -> Tensor:
        """Compute packed rows [T, C] of sequences that have at most ``length`` tokens.

        Sequence ``b`` holds the rows ``row_ptr[b]:row_ptr[b + 1]``.
        """


class AttentionForward(SequencePartForward[tuple[Linear, Linear]]):
    """Self-attention."""

    supported = "torch.nn.MultiheadAttention"
    watches = ("num_heads",)
    mask = "key_padding_mask"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a `torch.nn.MultiheadAttention` without extra keys and values."""
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
        """Refuse cross-attention and requests for attention weights."""
        query, key, value = (arguments.get(name) for name in ("query", "key", "value"))
        if not query is key is value:
            return "query, key and value are not the same tensor"
        harmless = ("key", "value", "average_attn_weights")
        others = {name: x for name, x in arguments.items() if name not in harmless}
        return super().refusal({"need_weights": True} | others)

    def collect(self) -> tuple[Linear, Linear]:
        """Read the linear maps before and after the attention."""
        qkv, out = _attention_weights(self.module)
        return qkv.to(self.dtype), out.to(self.dtype)

    def run(
        self, weights: tuple[Linear, Linear], x: Tensor, arguments: Mapping[str, Any]
    ) -> tuple[Tensor, None]:
        """Return the output, and None instead of attention weights."""
        return super().run(weights, x, arguments), None

    def run_rows(
        self, weights: tuple[Linear, Linear], x: Tensor, row_ptr: Tensor, length: int
    ) -> Tensor:
        """Attend to the rows of the same sequence."""
        return _attend(self.operators, x, row_ptr, length, *weights, self.module.num_heads)


class TransformerEncoderForward(SequencePartForward[tuple[Layer, ...]]):
    """PyTorch's Transformer encoder, or one layer of it."""

    supported = "torch.nn.TransformerEncoder"
    watches = ("eps", "approximate", "num_heads")

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for an encoder or a layer in which all submodules are PyTorch's own."""
        layers, norm = _layers(module), getattr(module, "norm", None)
        return (
            bool(layers)
            and all(map(_is_plain_layer, layers))
            and len({layer.self_attn.batch_first for layer in layers}) == 1
            and (norm is None or is_norm(norm))
            and is_unmodified(module)
        )

    @property
    def attention(self) -> Any:
        """Attention of the first layer."""
        return _layers(self.module)[0].self_attn

    def collect(self) -> tuple[Layer, ...]:
        """Read the weights of the layers."""
        return tuple(_layer_weights(layer, self.dtype) for layer in _layers(self.module))

    def run_rows(
        self, weights: tuple[Layer, ...], x: Tensor, row_ptr: Tensor, length: int
    ) -> Tensor:
        """Compute all layers, and the final normalization if there is one."""
        operators = self.operators
        for module, layer in zip(_layers(self.module), weights, strict=True):
            x = _layer(operators, x, row_ptr, length, module, layer)
        norm = getattr(self.module, "norm", None)
        return x if norm is None else operators.layer_norm(x, *Norm.of(norm).to(self.dtype))


def resembles_encoder(model: nn.Module) -> bool:
    """Return True if a model contains attention, or a stack of layers with normalizations."""
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
    operators: TransformerOperators,
    x: Tensor,
    row_ptr: Tensor,
    length: int,
    qkv: Linear,
    out: Linear,
    heads: int,
    residual: Tensor | None = None,
) -> Tensor:
    """Apply self-attention to packed rows [T, C]."""
    q, k, v = operators.linear(x, *qkv).unflatten(-1, (3, heads, -1)).unbind(1)
    mixed = operators.attention(q, k, v, row_ptr, length)
    return operators.linear(mixed.flatten(1), *out, residual=residual)


def _layers(module: Any) -> list[Any]:
    if is_plain(module, nn.TransformerEncoder):
        return list(module.layers)
    return [module] if is_plain(module, nn.TransformerEncoderLayer) else []


def _is_plain_layer(layer: Any) -> bool:
    return (
        is_plain(layer, nn.TransformerEncoderLayer)
        and AttentionForward.fits(layer.self_attn)
        and all(map(is_norm, (layer.norm1, layer.norm2)))
        and all(is_plain(linear, nn.Linear) for linear in (layer.linear1, layer.linear2))
        and activation_of(layer.activation) is not None
    )


def _layer_weights(layer: Any, dtype: torch.dtype) -> Layer:
    qkv, out = (weights.to(dtype) for weights in _attention_weights(layer.self_attn))
    first_norm, second_norm = (Norm.of(norm).to(dtype) for norm in (layer.norm1, layer.norm2))
    up, down = (Linear.of(linear).to(dtype) for linear in (layer.linear1, layer.linear2))
    return Layer(first_norm, qkv, out, second_norm, up, down)


def _layer(
    operators: TransformerOperators,
    x: Tensor,
    row_ptr: Tensor,
    length: int,
    module: Any,
    weights: Layer,
) -> Tensor:
    """Compute a layer of an encoder over packed rows [T, C]."""
    first_norm, qkv, out, second_norm, up, down = weights

    def norm(rows: Tensor, weights: Norm, wanted: bool) -> Tensor:
        return operators.layer_norm(rows, *weights) if wanted else rows

    pre_norm, heads = module.norm_first, module.self_attn.num_heads
    given = norm(x, first_norm, pre_norm)
    x = _attend(operators, given, row_ptr, length, qkv, out, heads, residual=x)
    x = norm(x, first_norm, not pre_norm)
    given = norm(x, second_norm, pre_norm)
    hidden = operators.linear(given, *up, activation_of(module.activation))
    return norm(operators.linear(hidden, *down, residual=x), second_norm, not pre_norm)
