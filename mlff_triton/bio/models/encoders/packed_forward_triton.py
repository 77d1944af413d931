"""Forward pass of an encoder over packed rows, in Triton kernels.

Padding is not computed, and nothing waits for the host. There are two versions of a layer:

- With few channels and rows, a launch takes longer than its computation. Normalizations are folded
  into the linear layers that follow them, which makes five launches per layer.
- With many, matrix products dominate. The products whose result is added to the residual run in
  the GPU's BLAS library, in place, and their biases are added by the next normalization.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton.bio.models.encoders.weights import EncoderWeights, Layer, Linear, Norm
from mlff_triton.kernels.common.reference import activations
from mlff_triton.kernels.ops.attention import attention
from mlff_triton.kernels.transformer import wide_linear as wide
from mlff_triton.kernels.transformer.rotary import rotary_
from mlff_triton.kernels.transformer.rotation import Rotary
from mlff_triton.kernels.transformer.token_linear import (
    Moments,
    Residual,
    TokenLinear,
    token_linear,
)
from mlff_triton.kernels.transformer.token_norm import token_moments, token_norm
from mlff_triton.kernels.transformer.types import PackedRows

# Up to these sizes, launches take longer than computations on an H200.
FEW_CHANNELS, FEW_ROWS = 512, 2048


class PendingRows(NamedTuple):
    """Rows with operations still to be applied: ``norm(x + shift)``.

    Attributes
    ----------
    x : [T, C]
        Packed rows.
    shift : [C] or None
        Vector to add, if any.
    norm : Norm or None
        Normalization to apply last, if any.
    """

    x: Tensor
    shift: Tensor | None
    norm: Norm | None


class Layout(NamedTuple):
    """Sequences and positions of packed rows.

    Attributes
    ----------
    packed : PackedRows
        Rows and sequences.
    length : int
        Length of the longest sequence, or more.
    rotary : Rotary or None
        Angles by which queries and keys are rotated.
    """

    packed: PackedRows
    length: int
    rotary: Rotary | None

    @property
    def live(self) -> Tensor | None:
        """Number of rows in use, int32 [1]; None for few rows, where computing all is faster."""
        return self.packed.row_ptr[-1:] if len(self.packed.token) > FEW_ROWS else None


class TritonEncoder:
    """Encoder whose weights are laid out for the kernels.

    Parameters
    ----------
    encoder : EncoderWeights
        Weights of any dtype.
    dtype : torch.dtype
        Dtype of the computation.
    """

    def __init__(self, encoder: EncoderWeights, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.embedding = encoder.embedding.to(dtype)
        self._heads = encoder.heads
        self._frequencies = encoder.frequencies
        self._angles: dict[int, tuple[Tensor, Tensor]] = {}
        few = encoder.embedding.word.shape[1] <= FEW_CHANNELS
        self._folded = _FoldedNormLayers(encoder, dtype) if few else None
        self._separate = _SeparateNormLayers(encoder, dtype)

    def layout(self, packed: PackedRows, length: int) -> Layout:
        """Add the rotary angles to the layout of packed rows."""
        if self._frequencies is None:
            return Layout(packed, length, None)
        cos, sin = self._cos_sin(self._frequencies, 1 << (length - 1).bit_length())
        columns = 4 * self._heads * len(self._frequencies)
        return Layout(packed, length, Rotary(cos, sin, packed.position, columns))

    def _cos_sin(self, frequencies: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [length, D / 2].

        They are cached, except during a capture, which computes nothing.
        """
        if length in self._angles:
            return self._angles[length]
        exact = torch.promote_types(self.dtype, torch.float32)
        positions = torch.arange(length, device=frequencies.device)
        angles = positions[:, None] * frequencies.to(exact)
        cos_sin = angles.cos(), angles.sin()
        if not is_capturing(angles):
            self._angles[length] = cos_sin
        return cos_sin

    def encode(
        self, x: Tensor, layout: Layout, keep: Collection[int] = ()
    ) -> tuple[PendingRows, dict[int, PendingRows]]:
        """Compute all layers for embedded tokens [T, C].

        Returns the output of the last layer and those of the layers in ``keep``; layer 0 is the
        embedding.
        """
        if self._folded is not None and len(x) <= FEW_ROWS:
            return self._folded.encode(x, layout, keep)
        return self._separate.encode(x, layout, keep)


class _FoldedNormLayer(NamedTuple):
    """Four linear layers, and the normalizations folded into ``qkv`` and ``up``."""

    qkv: TokenLinear
    out: TokenLinear
    up: TokenLinear
    down: TokenLinear
    first: Norm | None
    second: Norm


class _FoldedNormLayers:
    """Layers with each normalization folded into the linear layer that follows it.

    With post-norm, rows are stored before their normalization, so the residual connection that
    reads them normalizes them again.
    """

    def __init__(self, encoder: EncoderWeights, dtype: torch.dtype) -> None:
        self._heads, self._activation = encoder.heads, encoder.activation
        self._norm_first = encoder.norm_first
        self._layers = []
        pending: Norm | None = None  # normalization of the rows that the layer reads
        for layer in encoder.layers:
            first: Norm | None = layer.attention_norm
            second = layer.network_norm
            if not encoder.norm_first:
                first, second, pending = pending, layer.attention_norm, layer.network_norm
            self._layers.append(
                _FoldedNormLayer(
                    qkv=fold_norm(_qkv(layer, encoder), first, dtype),
                    out=fold_norm(layer.out, None, dtype),
                    up=fold_norm(layer.up, second, dtype),
                    down=fold_norm(layer.down, None, dtype),
                    first=first and first.to(dtype),
                    second=second.to(dtype),
                )
            )
        last = encoder.norm if encoder.norm_first else pending
        self._last = last and last.to(dtype)

    def encode(
        self, x: Tensor, layout: Layout, keep: Collection[int]
    ) -> tuple[PendingRows, dict[int, PendingRows]]:
        live = layout.live
        kept = {0: PendingRows(x, None, None)} if 0 in keep else {}
        sums = None if self._layers[0].first is None else token_moments(x, live)
        for number, layer in enumerate(self._layers, 1):
            moments = _moments(sums, layer.first)
            qkv, _ = token_linear(x, layer.qkv, live, moments=moments, rotary=layout.rotary)
            mixed = _attend(qkv, self._heads, layout)
            residual = self._residual(x, moments, layer.first)
            x, sums = token_linear(mixed, layer.out, live, residual=residual, with_moments=True)
            moments = _moments(sums, layer.second)
            hidden, _ = token_linear(
                x, layer.up, live, moments=moments, activation=self._activation
            )
            residual = self._residual(x, moments, layer.second)
            x, sums = token_linear(hidden, layer.down, live, residual=residual, with_moments=True)
            if number in keep:
                norm = None if self._norm_first else self._norm_after(number)
                kept[number] = PendingRows(x, None, norm)
        return PendingRows(x, None, self._last), kept

    def _norm_after(self, number: int) -> Norm | None:
        """Return the pending normalization of a layer's output."""
        return self._layers[number].first if number < len(self._layers) else self._last

    def _residual(self, x: Tensor, moments: Moments | None, norm: Norm | None) -> Residual:
        if self._norm_first or norm is None:
            return Residual(x)
        return Residual(x, moments, norm.weight, norm.bias)


def _moments(sums: Tensor | None, norm: Norm | None) -> Moments | None:
    return None if sums is None or norm is None else Moments(sums, norm.eps)


class _SeparateNormLayers:
    """Layers whose normalizations are separate kernels and whose residual sums are in place."""

    def __init__(self, encoder: EncoderWeights, dtype: torch.dtype) -> None:
        self._heads, self._activation = encoder.heads, encoder.activation
        self._norm_first = encoder.norm_first
        self._last = encoder.norm and encoder.norm.to(dtype)
        self._layers = []
        self._shifts: list[tuple[Tensor, Tensor]] = []
        total: Tensor | int = 0
        for layer in encoder.layers:
            layer = layer._replace(qkv=_qkv(layer, encoder))  # noqa: PLW2901
            first = total + layer.out.bias_or_zeros.double()
            second = layer.down.bias_or_zeros.double() + (first if self._norm_first else 0)
            total = second if self._norm_first else total
            exact = torch.promote_types(dtype, torch.float32)
            self._shifts.append((first.to(exact), second.to(exact)))
            self._layers.append(layer.to(dtype))

    def encode(
        self, x: Tensor, layout: Layout, keep: Collection[int]
    ) -> tuple[PendingRows, dict[int, PendingRows]]:
        live = layout.live
        shift: Tensor | None = None
        kept = {0: PendingRows(x.clone(), None, None)} if 0 in keep else {}
        for number, (layer, shifts) in enumerate(zip(self._layers, self._shifts, strict=True), 1):
            given = token_norm(x, *layer.attention_norm, live, shift) if self._norm_first else x
            mixed = _attend(_rotated_qkv(given, layer.qkv, layout), self._heads, layout)
            x = x.addmm_(mixed, layer.out.weight.T)
            norm = layer.network_norm if self._norm_first else layer.attention_norm
            given = token_norm(x, *norm, live, shifts[0])
            x = x if self._norm_first else given
            hidden = _activated(given, layer.up, self._activation, live)
            x = x.addmm_(hidden, layer.down.weight.T)
            shift = shifts[1]
            if not self._norm_first:
                x, shift = token_norm(x, *layer.network_norm, live, shift), None
            if number in keep:
                kept[number] = PendingRows(x.clone(), shift, None)
        return PendingRows(x, shift, self._last), kept


def _attend(qkv: Tensor, heads: int, layout: Layout) -> Tensor:
    q, k, v = qkv.unflatten(1, (3, heads, -1)).unbind(1)
    return attention(q, k, v, layout.packed.row_ptr, layout.length).flatten(1)


def _rotated_qkv(x: Tensor, qkv: Linear, layout: Layout) -> Tensor:
    """Compute queries, keys and values, with queries and keys rotated by their positions."""
    if wide.fits(x, qkv.weight):
        bias = qkv.bias_or_zeros
        return wide.wide_linear(x, qkv.weight, bias, layout.live, rotary=layout.rotary)
    rows = qkv(x)
    return rows if layout.rotary is None else rotary_(rows, layout.rotary, layout.live)


def _activated(x: Tensor, up: Linear, activation: str, live: Tensor | None) -> Tensor:
    if wide.fits(x, up.weight):
        return wide.wide_linear(x, up.weight, up.bias_or_zeros, live, activation=activation)
    return activations.activate(up(x), activation)


def fold_norm(linear: Linear, norm: Norm | None, dtype: torch.dtype) -> TokenLinear:
    """Fold the normalization of a linear layer's input into the layer's weights."""
    scale_and_shift = norm and (norm.weight, norm.bias)
    return TokenLinear.of(linear.weight, linear.bias_or_zeros, scale_and_shift, dtype)


def _qkv(layer: Layer, encoder: EncoderWeights) -> Linear:
    """Return the map to queries, keys and values in the order that the kernels expect.

    With rotary embeddings, the rows i and i + D / 2 of each head's queries and keys, which are
    rotated together, are interleaved.
    """
    qkv = layer.qkv
    if encoder.frequencies is None:
        return qkv
    order = torch.arange(len(qkv.weight), device=qkv.weight.device).view(3, encoder.heads, 2, -1)
    order = torch.cat([order[:2].transpose(2, 3).flatten(), order[2].flatten()])
    return Linear(qkv.weight[order], None if qkv.bias is None else qkv.bias[order])
