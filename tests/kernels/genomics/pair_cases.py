"""Random inputs of operators on pairs of bins, and their comparison with references."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from mlff_triton.testing import assert_within

BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # error relative to the largest output
HALF = torch.half  # stands for the half precision that is tested
sizes = pytest.mark.parametrize("size", [(1, 1), (2, 5), (1, 33)], ids=str)  # B, P
C, H, LEVELS, EPS = 16, 4, 8, 1e-5


def random(*shape: int, half: bool = True, scale: float = 1.0) -> Tensor:
    """Return random values, exact in all half precisions; float32 unless ``half``."""
    x = (scale * torch.randn(shape)).bfloat16()
    return x.to(HALF) if half else x.float()


def moved(value: Any, device: str, halves: torch.dtype, floats: torch.dtype) -> Any:
    """Move tensors, those of half precision and those of float32 in other dtypes."""
    if isinstance(value, Tensor):
        return value.to(device, {HALF: halves, torch.float32: floats}.get(value.dtype, value.dtype))
    if isinstance(value, tuple):
        parts = [moved(part, device, halves, floats) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def assert_matches(name: str, device: str, half: torch.dtype, *given: Any) -> None:
    """Compare an operator with its reference."""
    package = "mlff_triton.kernels.genomics."
    kernel, reference = (
        getattr(import_module(f"{package}{folder}{name}"), name) for folder in ("", "reference.")
    )
    exact = reference(*(moved(x, "cpu", torch.float64, torch.float64) for x in given))
    found = kernel(*(moved(x, device, half, torch.float32) for x in given))
    found, exact = ((x,) if isinstance(x, Tensor) else x for x in (found, exact))
    for part, wanted in zip(found, exact, strict=True):
        assert (part is None) == (wanted is None)
        if wanted is not None:
            assert_within(part.cpu(), wanted, BOUNDS[half])
