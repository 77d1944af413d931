"""Protocol of the operators of genome models, which kernels and references satisfy."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mlff_triton.kernels.genomics.types import (
    Activated,
    Activation,
    PairBiases,
    PairContacts,
    PairMaxima,
    PairMLP,
    TrackPlan,
    TrackWeights,
)
from mlff_triton.kernels.types.norm import Norm


class GenomicOperators(Protocol):
    """Operators of genome models.

    `mlff_triton.kernels.genomics.operators` (fused Triton kernels) and
    `mlff_triton.kernels.genomics.reference.operators` (plain PyTorch) both implement it.
    Shapes are documented with the operators themselves.
    """

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        row_ptr: Tensor,
        max_length: int,
        bias: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Compute softmax attention within packed sequences."""

    def attention_inputs(
        self, x: Tensor, q_norm: Norm, k_norm: Norm, v_norm: Norm, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize and rotate queries, keys and values that share one product."""

    def attention_pool(
        self,
        pairs: Tensor,
        weight: Tensor,
        *,
        activation: Activation | None = None,
        with_rows: bool = True,
    ) -> Activated:
        """Pool pairs of rows by attention, with separate weights for each channel."""

    def attention_residual(self, x: Tensor, change: Tensor) -> Tensor:
        """Add a change to rows in place, and return them in half precision."""

    def binned_linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Apply a linear map with a bias for each bin of positions, then GELU."""

    def capped_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pair_bias: Tensor,
        cap: float = 5.0,
        scale: float | None = None,
    ) -> Tensor:
        """Compute attention of heads that share keys and values, with capped scores."""

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        *,
        residual: Tensor | None = None,
        residual_scale: float = 1.0,
        activation: Activation | None = None,
        with_rows: bool = True,
        out: Tensor | None = None,
    ) -> Activated:
        """Convolve sequences, and normalize and activate the result for the next layer."""

    def junction_reads(
        self,
        products: Tensor,
        factor: float,
        sites: Tensor,
        mask: Tensor,
        organism: Tensor,
        out: Tensor,
    ) -> None:
        """Write the reads of the junctions of one strand."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        """Apply a linear map to rows [R, K], then "relu" or "none"."""

    def normalize(self, x: Tensor, norm: Norm, shift: Tensor | None) -> Tensor:
        """Normalize rows [R, C] after adding a vector [C]."""

    def pair_attention_inputs(
        self,
        scores: Tensor,
        y: Tensor,
        pair: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        qkv_weight: Tensor,
        qkv_bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Add scores and terms of bins to pairs, and project the normalized pairs."""

    def pair_contacts(
        self, pair: Tensor, eps: float, contacts: PairContacts, organism: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Compute contact maps from pairs."""

    def pair_maxima(
        self, x: Tensor, activation: Activation | None = None, skip: Activation | None = None
    ) -> PairMaxima:
        """Take the maximum of each pair of positions, and activate the results."""

    def pair_mlp(
        self, pair: Tensor, attended: Tensor, eps: float, mlp: PairMLP, biases: PairBiases
    ) -> tuple[Tensor, Tensor]:
        """Add attention and an MLP to pairs, and compute attention biases from them."""

    def pair_pool(
        self, x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float, width: int
    ) -> tuple[Tensor, Tensor]:
        """Average positions by bin, divide by their root mean square, and activate the results."""

    def pair_scores(self, x: Tensor, index: Tensor, heads: int, levels: int) -> Tensor:
        """Compute the scores of all pairs of bins."""

    def paired_rows(
        self, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None
    ) -> Tensor:
        """Apply a pointwise convolution, and combine pairs of neighboring rows."""

    def relative_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rel_k: Tensor,
        content_bias: Tensor,
        position_bias: Tensor,
        scale: float | None = None,
    ) -> Tensor:
        """Compute attention with keys for content and for relative positions."""

    def rotated_sites(
        self, x: Tensor, scale: Tensor, shift: Tensor, cos: Tensor, sin: Tensor, organism: Tensor
    ) -> Tensor:
        """Scale sites for each tissue and rotate their pairs of columns."""

    def sequence_windows(self, x: Tensor, taps: int, out: Tensor) -> None:
        """Write the window of channels around every position of sequences."""

    def tracks(
        self,
        x: Tensor,
        weights: TrackWeights,
        plan: TrackPlan,
        organism: Tensor,
        dtype: torch.dtype,
        *,
        scaled: bool = False,
    ) -> list[tuple[Tensor, ...]]:
        """Compute the tracks of several heads."""
