"""Token embeddings before a Transformer's first layer, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm
from mlff_triton.kernels.transformer.types import PackedRows
from mlff_triton.kernels.types.norm import Norm

TRAINED_WITH = 1 - 0.15 * 0.8
"""Share of tokens that were not masked in the training of ESM-2."""


def token_embedding(
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
    """Embed as `mlff_triton.kernels.transformer.token_embedding.token_embedding` does.

    The result has rows for the kept tokens only.
    """
    length = ids.shape[1]
    kept = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask != 0
    token = kept.flatten().nonzero()[:capacity, 0]
    position = token % length
    x = embedding(ids.flatten()[token], word)
    if mask_token is not None:
        masked = ids == mask_token
        exact = torch.promote_types(x.dtype, torch.float32)
        share = 1 - masked.sum(1).to(exact) / (length if count_padding else kept.sum(1))
        x = x.masked_fill(masked.flatten()[token, None], 0)
        x = (x * TRAINED_WITH / share[token // length, None]).to(x.dtype)
    if position_table is not None:
        x = x + position_table[position if positions is None else positions.flatten()[token]]
    if kind_table is not None:
        x = x + kind_table[torch.zeros_like(token) if kinds is None else kinds.flatten()[token]]
    if norm is not None:
        x = layer_norm(x, *norm)
    row_of = torch.full((ids.numel(),), -1, dtype=torch.int32, device=ids.device)
    row_of[token] = torch.arange(len(token), dtype=torch.int32, device=ids.device)
    ends = kept.sum(1).cumsum(0).clamp(max=len(token))
    row_ptr = torch.cat([ends.new_zeros(1), ends]).int()
    return x, PackedRows(token.int(), position.int(), row_ptr, row_of)
