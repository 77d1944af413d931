"""Weights of a layer normalization."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

Norm: TypeAlias = tuple[Tensor, Tensor | None, float]
"""Weight [C], bias [C] or None, and eps."""
