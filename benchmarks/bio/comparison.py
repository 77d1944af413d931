"""Comparison of the results of two calls of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def leaves(outputs: Any, name: str = "") -> dict[str, Tensor]:
    """List all floating-point tensors in nested dictionaries of outputs, by path."""
    if isinstance(outputs, Tensor):
        return {name: outputs} if outputs.is_floating_point() else {}
    found: dict[str, Tensor] = {}
    if isinstance(outputs, dict):
        for key, value in outputs.items():
            found |= leaves(value, f"{name}/{key}")
    return found


def largest_error(actual: Any, expected: Any) -> float:
    """Return half the squared relative error of the worst output, with NaN as the largest."""
    others = leaves(actual)
    errors = [half_square(others[name], values) for name, values in leaves(expected).items()]
    return float(np.max(errors))


def half_square(actual: Tensor, expected: Tensor) -> float:
    """Return half the squared relative error of a tensor.

    This is one minus the cosine similarity if norms are equal.
    """
    a, b = actual.double().flatten(), expected.to(actual.device).double().flatten()
    # The difference is not stored, as an output may take gigabytes.
    aa, ab, bb = torch.dot(a, a), torch.dot(a, b), torch.dot(b, b)
    return float(((aa - 2 * ab + bb) / (2 * bb)).clamp(min=0))
