"""Inputs of the operators on packed rows, and comparisons with their references."""

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
N_POSITIONS = 50  # in the tables of angles
WORDS, MASK_TOKEN, PADDING = 21, 7, -100


def random_rows(n_rows: int, channels: int, dtype: torch.dtype, live: int | None = None) -> Tensor:
    """Return random rows with a nonzero mean, NaN from row ``live`` on."""
    x = torch.randn(n_rows, channels) + 0.5
    x[n_rows if live is None else live :] = torch.nan
    return x.to(dtype)


def random_rotary(n_rows: int, columns: int, dim: int, dtype: torch.dtype) -> Rotary:
    """Return angles for heads with ``dim`` channels, and random positions of the rows."""
    frequencies = 10.0 ** -torch.linspace(0, 3, dim // 2, dtype=torch.float64)
    angles = torch.arange(N_POSITIONS)[:, None] * frequencies
    angles = angles.to(COMPUTE_DTYPES[dtype])
    position = torch.randint(N_POSITIONS, (n_rows,), dtype=torch.int32)
    return Rotary(angles.cos(), angles.sin(), position, columns)


def random_layer(n_out: int, n_in: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a random weight and bias."""
    weight, bias = torch.randn(n_out, n_in), torch.randn(n_out)
    return (weight / n_in**0.5).to(dtype), bias.to(dtype)


def random_mask(batch: int, length: int) -> Tensor:
    """Return a mask that keeps most tokens, with every third sequence empty."""
    mask = torch.rand(batch, length) < 0.7
    mask[:, :1] = True
    mask[1::3] = False
    return mask


def random_tokens(mask: Tensor) -> Tensor:
    """Return tokens, about a tenth of them masked, with an invalid id for padding."""
    ids = torch.randint(WORDS, mask.shape)
    ids[torch.rand(mask.shape) < 0.1] = MASK_TOKEN
    ids[:, :1] = MASK_TOKEN + 1  # a sequence of masked tokens alone would give NaN
    return torch.where(mask != 0, ids, PADDING)


def live_count(live: int, device: str) -> Tensor:
    """Return the number of rows to compute as a tensor that kernels read."""
    return torch.tensor([live], dtype=torch.int32, device=device)


def rotary_on(device: str, rotary: Rotary) -> Rotary:
    """Move a rotation to a device."""
    return Rotary(*(t.to(device) for t in rotary[:3]), rotary.columns)


def layer_of(
    device: str, weight: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor] | None = None
) -> TokenLinear:
    """Return a layer on a device."""
    norm = None if norm is None else (norm[0].to(device), norm[1].to(device))
    return TokenLinear.of(weight.to(device), bias.to(device), norm, weight.dtype)


def truth(x: Tensor, layer: tuple[Tensor, Tensor], norm: Any = None, **options: Any) -> Tensor:
    """Return what the reference of `token_linear` computes in float64."""
    return reference.token_linear(*doubled((x, *layer, norm)), **doubled(options))


def doubled(value: Any) -> Any:
    """Copy tensors to the host, floating-point ones as float64, also in tuples and dictionaries."""
    if isinstance(value, Tensor):
        return value.cpu().double() if value.is_floating_point() else value.cpu()
    if isinstance(value, tuple):
        return tuple(doubled(v) for v in value)
    return {k: doubled(v) for k, v in value.items()} if isinstance(value, dict) else value


def moved(value: Any, to: Any) -> Any:
    """Convert floating-point tensors to a dtype, or move all tensors to a device."""
    if isinstance(value, tuple):
        return tuple(moved(v, to) for v in value)
    if isinstance(value, dict):
        return {name: moved(v, to) for name, v in value.items()}
    if isinstance(value, Tensor) and (value.is_floating_point() or isinstance(to, str)):
        return value.to(to)
    return value


def assert_near(found: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Compare with float64, to one rounding of the largest element for half precisions."""
    if dtype in (torch.float16, torch.bfloat16):
        error = (found.cpu().double() - exact).abs().max()
        assert error < torch.finfo(dtype).eps * exact.abs().max()
    else:
        assert_close(found, exact, 0, dtype)


def assert_rows(
    found: Tensor, exact: Tensor, dtype: torch.dtype, live: int | None = None, order: int = 0
) -> None:
    """Compare live rows with float64; all other rows must still hold NaN."""
    assert found.dtype is dtype
    assert found.shape == exact.shape
    live = len(exact) if live is None else live
    assert found[live:].isnan().all(), "an unused row was written"
    found, exact = found[:live].cpu(), exact[:live]
    if dtype in (torch.float16, torch.bfloat16):
        assert (found - exact).abs().max() < 4 * torch.finfo(dtype).eps * exact.abs().max()
    else:
        assert_close(found, exact, order, dtype)
