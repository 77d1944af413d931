"""Encoders in fused kernels. Nothing waits for the host, and padding is not computed.

There are two ways through a layer. With few channels and rows a launch takes longer than what it
computes: normalizations become parts of the linear layers behind them, and a layer is five
launches. With many, products decide: those whose result is added go to the GPU's library of
products, in place, and their biases are added by the normalization that reads the sum.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton.bio.encoders.encoder import Encoder, Layer, Linear, Norm
from mlff_triton.kernels.common.reference import activations
from mlff_triton.kernels.common.rows import Rotary
from mlff_triton.kernels.ops.attention import attention
from mlff_triton.kernels.transformer import wide_linear as wide
from mlff_triton.kernels.transformer.rotary import rotary_
from mlff_triton.kernels.transformer.token_linear import (
    Moments,
    Residual,
    TokenLinear,
    token_linear,
)
from mlff_triton.kernels.transformer.token_norm import token_moments, token_norm
from mlff_triton.kernels.types.packed_rows import PackedRows

FEW_CHANNELS, FEW_ROWS = 512, 2048  # up to which launches decide on an H200


class Rows(NamedTuple):
    """PackedRows rows between kernels: ``x`` [T, C] plus ``shift`` [C], normalized by ``norm``.

    What is None is left out.
    """

    x: Tensor
    shift: Tensor | None
    norm: Norm | None


class Places(NamedTuple):
    """Where rows belong: of their sequences, and the angles of their positions.

    Attributes
    ----------
    packed : PackedRows
        Rows and sequences.
    length : int
        Of the longest sequence, or more.
    rotary : Rotary or None
        How far queries and keys are turned.
    """

    packed: PackedRows
    length: int
    rotary: Rotary | None

    @property
    def live(self) -> Tensor | None:
        """How many rows there are, int32 [1]; None if it takes longer to ask than to compute."""
        return self.packed.row_ptr[-1:] if len(self.packed.token) > FEW_ROWS else None


class FusedEncoder:
    """An `Encoder` for the kernels.

    Parameters
    ----------
    encoder : Encoder
        Weights of a model.
    dtype : torch.dtype
        What to compute in.
    """

    def __init__(self, encoder: Encoder, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.embedding = encoder.embedding.to(dtype)
        self._heads = encoder.heads
        self._frequencies = encoder.frequencies
        self._angles: dict[int, tuple[Tensor, Tensor]] = {}
        few = encoder.embedding.word.shape[1] <= FEW_CHANNELS
        self._folded = _Folded(encoder, dtype) if few else None
        self._separate = _Separate(encoder, dtype)

    def places(self, packed: PackedRows, length: int) -> Places:
        """Where rows belong."""
        if self._frequencies is None:
            return Places(packed, length, None)
        cos, sin = self._turns(self._frequencies, 1 << (length - 1).bit_length())
        columns = 4 * self._heads * len(self._frequencies)
        return Places(packed, length, Rotary(cos, sin, packed.place, columns))

    def _turns(self, frequencies: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [length, D / 2]; kept, unless a capture would leave them undefined."""
        if length in self._angles:
            return self._angles[length]
        exact = torch.promote_types(self.dtype, torch.float32)
        places = torch.arange(length, device=frequencies.device)
        angles = places[:, None] * frequencies.to(exact)
        turns = angles.cos(), angles.sin()
        if not is_capturing(angles):
            self._angles[length] = turns
        return turns

    def run(
        self, x: Tensor, places: Places, keep: Collection[int] = ()
    ) -> tuple[Rows, dict[int, Rows]]:
        """Rows [T, C] through all layers, and what came out of some; 0 is what went in."""
        if self._folded is not None and len(x) <= FEW_ROWS:
            return self._folded.run(x, places, keep)
        return self._separate.run(x, places, keep)


class _FoldedLayer(NamedTuple):
    """Four linear layers, and the normalizations of the rows that two of them are given."""

    qkv: TokenLinear
    out: TokenLinear
    up: TokenLinear
    down: TokenLinear
    first: Norm | None
    second: Norm


class _Folded:
    """Normalizations are parts of the linear layers behind them.

    Where layers normalize sums, rows stay as they are before that, and whoever adds them again
    normalizes them once more.
    """

    def __init__(self, encoder: Encoder, dtype: torch.dtype) -> None:
        self._heads, self._activation = encoder.heads, encoder.activation
        self._norm_first = encoder.norm_first
        self._layers = []
        given: Norm | None = None  # what normalizes the rows that a layer starts from
        for layer in encoder.layers:
            first: Norm | None = layer.attention_norm
            second = layer.network_norm
            if not encoder.norm_first:
                first, second, given = given, layer.attention_norm, layer.network_norm
            self._layers.append(
                _FoldedLayer(
                    qkv=folded(_qkv(layer, encoder), first, dtype),
                    out=folded(layer.out, None, dtype),
                    up=folded(layer.up, second, dtype),
                    down=folded(layer.down, None, dtype),
                    first=first and first.to(dtype),
                    second=second.to(dtype),
                )
            )
        last = encoder.norm if encoder.norm_first else given
        self._last = last and last.to(dtype)

    def run(self, x: Tensor, places: Places, keep: Collection[int]) -> tuple[Rows, dict[int, Rows]]:
        live = places.live
        kept = {0: Rows(x, None, None)} if 0 in keep else {}
        sums = None if self._layers[0].first is None else token_moments(x, live)
        for number, layer in enumerate(self._layers, 1):
            moments = _moments(sums, layer.first)
            qkv, _ = token_linear(x, layer.qkv, live, moments=moments, rotary=places.rotary)
            mixed = _attend(qkv, self._heads, places)
            residual = self._residual(x, moments, layer.first)
            x, sums = token_linear(mixed, layer.out, live, residual=residual, with_moments=True)
            moments = _moments(sums, layer.second)
            hidden, _ = token_linear(
                x, layer.up, live, moments=moments, activation=self._activation
            )
            residual = self._residual(x, moments, layer.second)
            x, sums = token_linear(hidden, layer.down, live, residual=residual, with_moments=True)
            if number in keep:
                kept[number] = Rows(x, None, None if self._norm_first else self._after(number))
        return Rows(x, None, self._last), kept

    def _after(self, number: int) -> Norm | None:
        """What normalizes the rows that a layer leaves."""
        return self._layers[number].first if number < len(self._layers) else self._last

    def _residual(self, x: Tensor, moments: Moments | None, norm: Norm | None) -> Residual:
        if self._norm_first or norm is None:
            return Residual(x)
        return Residual(x, moments, norm.weight, norm.bias)


def _moments(sums: Tensor | None, norm: Norm | None) -> Moments | None:
    return None if sums is None or norm is None else Moments(sums, norm.eps)


class _Separate:
    """Normalizations are kernels of their own, and sums are made in place."""

    def __init__(self, encoder: Encoder, dtype: torch.dtype) -> None:
        self._heads, self._activation = encoder.heads, encoder.activation
        self._norm_first = encoder.norm_first
        self._last = encoder.norm and encoder.norm.to(dtype)
        self._layers = []
        self._shifts: list[tuple[Tensor, Tensor]] = []
        total: Tensor | int = 0
        for layer in encoder.layers:
            layer = layer._replace(qkv=_qkv(layer, encoder))  # noqa: PLW2901
            first = total + layer.out.shift.double()
            second = layer.down.shift.double() + (first if self._norm_first else 0)
            total = second if self._norm_first else total
            exact = torch.promote_types(dtype, torch.float32)
            self._shifts.append((first.to(exact), second.to(exact)))
            self._layers.append(layer.to(dtype))

    def run(self, x: Tensor, places: Places, keep: Collection[int]) -> tuple[Rows, dict[int, Rows]]:
        live = places.live
        shift: Tensor | None = None
        kept = {0: Rows(x.clone(), None, None)} if 0 in keep else {}
        for number, (layer, shifts) in enumerate(zip(self._layers, self._shifts, strict=True), 1):
            given = token_norm(x, *layer.attention_norm, live, shift) if self._norm_first else x
            mixed = _attend(_turned(given, layer.qkv, places), self._heads, places)
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
                kept[number] = Rows(x.clone(), shift, None)
        return Rows(x, shift, self._last), kept


def _attend(qkv: Tensor, heads: int, places: Places) -> Tensor:
    q, k, v = qkv.unflatten(1, (3, heads, -1)).unbind(1)
    return attention(q, k, v, places.packed.row_ptr, places.length).flatten(1)


def _turned(x: Tensor, qkv: Linear, places: Places) -> Tensor:
    """Queries, keys and values, turned by their positions."""
    if wide.fits(x, qkv.weight):
        return wide.wide_linear(x, qkv.weight, qkv.shift, places.live, rotary=places.rotary)
    rows = qkv(x)
    return rows if places.rotary is None else rotary_(rows, places.rotary, places.live)


def _activated(x: Tensor, up: Linear, activation: str, live: Tensor | None) -> Tensor:
    if wide.fits(x, up.weight):
        return wide.wide_linear(x, up.weight, up.shift, live, activation=activation)
    return activations.activate(up(x), activation)


def folded(linear: Linear, norm: Norm | None, dtype: torch.dtype) -> TokenLinear:
    """A linear layer that normalizes what it is given."""
    return TokenLinear.of(linear.weight, linear.shift, norm and (norm.weight, norm.bias), dtype)


def _qkv(layer: Layer, encoder: Encoder) -> Linear:
    """With rotation: rows i and i + D / 2 of every head's queries and keys side by side."""
    qkv = layer.qkv
    if encoder.frequencies is None:
        return qkv
    order = torch.arange(len(qkv.weight), device=qkv.weight.device).view(3, encoder.heads, 2, -1)
    order = torch.cat([order[:2].transpose(2, 3).flatten(), order[2].flatten()])
    return Linear(qkv.weight[order], None if qkv.bias is None else qkv.bias[order])
