"""Tracks of AlphaGenome and linear maps with a bias for each bin, in plain PyTorch.

p = softplus(x W^T + b) s
y = f(p) m      f(p) = p up to 10, (p + 10)^2 / 40 above; to the power 4/3 for RNA
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from mlff_triton.kernels.common.reference.activations import activate
from mlff_triton.kernels.genomics.types import (
    LOGITS,
    PROBABILITIES,
    SQUASHED,
    TrackPlan,
    TrackWeights,
)


def binned_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `mlff_triton.kernels.genomics.tracks.binned_linear`."""
    y: Tensor = (x @ weight.T).unflatten(1, (bias.shape[1], -1)) + bias[:, :, None]
    return activate(y, "gelu_sigmoid").flatten(1, 2).to(x.dtype)


def tracks(
    x: Tensor,
    weights: TrackWeights,
    plan: TrackPlan,
    organism: Tensor,
    dtype: torch.dtype,
    *,
    scaled: bool = False,
) -> list[tuple[Tensor, ...]]:
    """Compute `mlff_triton.kernels.genomics.tracks.tracks`."""
    results: list[tuple[Tensor, ...]] = []
    for first, n_tracks, kind in plan.heads:
        rows = slice(first, first + n_tracks)
        weight, bias, scale, mean = (w[organism][:, rows] for w in weights)
        logits = (x @ weight.mT).to(bias.dtype) + bias[:, None]
        if kind >= LOGITS:
            both = logits, torch.sigmoid(logits)
            results.append(tuple(y.to(dtype) for y in both[: 1 + (kind == PROBABILITIES)]))
            continue
        p = softplus(logits) * scale[:, None]
        if not scaled:
            p = torch.where(p > 10, (p + 10) ** 2 / 40, p)
            p = (p ** (4 / 3) if kind == SQUASHED else p) * mean[:, None]
        results.append((p.to(dtype),))
    return results
