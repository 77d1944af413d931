"""Packed rows of which only some are alive, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.common.dense import COMPUTE_DTYPES
from mlff_triton.kernels.transformer.reference import token_linear as reference
from mlff_triton.kernels.transformer.rotation import Rotary
from mlff_triton.kernels.transformer.token_linear import TokenLinear
from mlff_triton.testing import assert_close

BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        not torch.cuda.is_available(), reason="Triton's interpreter multiplies bfloat16 as integers"
    ),
)
HALVES = [torch.float16, BFLOAT16]
DTYPES = [torch.float32, torch.float64, *HALVES]
LENGTH = 50  # of the table of angles


def random_rows(n_rows: int, channels: int, dtype: torch.dtype, live: int | None = None) -> Tensor:
    """Rows whose mean is not zero, and NaN from ``live`` on."""
    x = torch.randn(n_rows, channels) + 0.5
    x[n_rows if live is None else live :] = torch.nan
    return x.to(dtype)


def random_rotary(n_rows: int, columns: int, dim: int, dtype: torch.dtype) -> Rotary:
    """Angles of heads that have ``dim`` channels, and a position of each row."""
    frequencies = 10.0 ** -torch.linspace(0, 3, dim // 2, dtype=torch.float64)
    angles = torch.arange(LENGTH)[:, None] * frequencies
    angles = angles.to(COMPUTE_DTYPES[dtype])
    position = torch.randint(LENGTH, (n_rows,), dtype=torch.int32)
    return Rotary(angles.cos(), angles.sin(), position, columns)


def random_layer(n_out: int, n_in: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weight and bias."""
    weight, bias = torch.randn(n_out, n_in), torch.randn(n_out)
    return (weight / n_in**0.5).to(dtype), bias.to(dtype)


def counted(live: int, device: str) -> Tensor:
    """How many rows are alive, as kernels read it."""
    return torch.tensor([live], dtype=torch.int32, device=device)


def on(device: str, rotary: Rotary) -> Rotary:
    return Rotary(*(t.to(device) for t in rotary[:3]), rotary.columns)


def layer_of(
    device: str, weight: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor] | None = None
) -> TokenLinear:
    norm = None if norm is None else (norm[0].to(device), norm[1].to(device))
    return TokenLinear.of(weight.to(device), bias.to(device), norm, weight.dtype)


def truth(x: Tensor, layer: tuple[Tensor, Tensor], norm: Any = None, **options: Any) -> Tensor:
    """The reference of `token_linear` in float64."""
    return reference.token_linear(*doubled((x, *layer, norm)), **doubled(options))


def doubled(value: Any) -> Any:
    """Floating-point tensors in float64 on the host, also those in tuples and dictionaries."""
    if isinstance(value, Tensor):
        return value.cpu().double() if value.is_floating_point() else value.cpu()
    if isinstance(value, tuple):
        return tuple(doubled(v) for v in value)
    return {k: doubled(v) for k, v in value.items()} if isinstance(value, dict) else value


def assert_rows(
    found: Tensor, exact: Tensor, dtype: torch.dtype, live: int | None = None, order: int = 0
) -> None:
    """Compare live rows with the truth; the others must be as poisoned as they were."""
    assert found.dtype is dtype
    assert found.shape == exact.shape
    live = len(exact) if live is None else live
    assert found[live:].isnan().all(), "a row that means nothing was written to"
    found, exact = found[:live].cpu(), exact[:live]
    if dtype in (torch.float16, torch.bfloat16):
        assert (found - exact).abs().max() < 4 * torch.finfo(dtype).eps * exact.abs().max()
    else:
        assert_close(found, exact, order, dtype)
