"""Protocol of the operators on packed rows of tokens, which kernels and references satisfy."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mlff_triton.kernels.transformer.types import PackedRows
from mlff_triton.kernels.types.norm import Norm


class TransformerOperators(Protocol):
    """Operators on packed rows of tokens.

    `mlff_triton.kernels.transformer.operators` (fused Triton kernels) and
    `mlff_triton.kernels.transformer.reference.operators` (plain PyTorch) both implement it.
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

    def layer_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-05
    ) -> Tensor:
        """Apply layer normalization over the last axis."""

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        scale: Tensor | None = None,
        residual: Tensor | None = None,
        precision: str | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Apply a linear layer, activation, scale and residual."""

    def token_embedding(
        self,
        ids: Tensor,
        word: Tensor,
        mask: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        position_table: Tensor | None = None,
        kinds: Tensor | None = None,
        kind_table: Tensor | None = None,
        norm: Norm | None = None,
        mask_token: int | None = None,
        count_padding: bool = False,
        capacity: int | None = None,
    ) -> tuple[Tensor, PackedRows]:
        """Embed the kept tokens of a padded batch as packed rows."""

    def unpack_rows(
        self,
        x: Tensor,
        row_of: Tensor,
        shape: tuple[int, int],
        *,
        shift: Tensor | None = None,
        norm: Norm | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Unpack rows to a padded batch with zeros for padding."""
