"""Parts of the workloads that predict structures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ATOMS = (7, 6, 6, 8, 6, 6, 6, 8)
"""Atomic numbers of a residue of average size, that begins with N, C-alpha, C and O."""
PER_TOKEN = len(ATOMS)


class Predicting(nn.Module):
    """Module that runs another one under autocast to bfloat16, with TF32 products in float32."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        device = next(self.inner.parameters()).device.type
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            with torch.autocast(device, torch.bfloat16):
                return self.inner(*args, **kwargs)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def outermost(model: nn.Module, kind: str) -> nn.Module:
    """Return the outermost module of a class."""
    return next(module for module in model.modules() if type(module).__name__ == kind)


def distance_error(actual: Tensor, expected: Tensor) -> float:
    """Return one minus the cosine similarity of the distances between residues.

    Positions are [..., S, A, 3], of S samples of A atoms.
    """
    x, y = (_distances(positions.cpu().double()) for positions in (actual, expected))
    return float(1 - x @ y / (x.norm() * y.norm()))


def _distances(positions: Tensor) -> Tensor:
    centers = positions.flatten(0, -3)[:, 1::PER_TOKEN]
    return torch.cdist(centers, centers).flatten()
