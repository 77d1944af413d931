"""Random inputs of operators on pairs, and bounds on errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.types.norm import Norm

BOUNDS = {torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2, torch.float32: 2e-6}
"""Error relative to the largest output."""

dtypes = pytest.mark.parametrize("precision", list(BOUNDS), ids=str)
halves = pytest.mark.parametrize("precision", list(BOUNDS)[:2], ids=str)

ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22}
"""Mean error below which nothing is compared, relative to the mean output."""

_FEWEST_ROWS = 16


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return random values that are exact in the dtype, in float64."""
    return torch.randn(shape).to(dtype).double()


def random_map(n_out: int, n_in: int, dtype: torch.dtype) -> Tensor:
    """Return a random map of channels that keeps the size of vectors, exact in the dtype."""
    return (random(n_out, n_in, dtype=dtype) * n_in**-0.5).to(dtype).double()


def random_mask(*shape: int) -> Tensor:
    """Return a mask with rows of four kinds: whole, padded at the end, with holes, and empty."""
    length = shape[-1]
    mask = torch.ones(shape).reshape(-1, length)
    mask[1::4, length // 2 + 1 :] = 0
    mask[2::4] = (torch.rand_like(mask[2::4]) < 0.7).float()
    mask[3::4] = 0
    return mask.reshape(shape)


def norm(channels: int, precision: torch.dtype, bias: bool = True) -> Norm:
    """Return a random normalization in float64, with a bias if wanted."""
    weight, shift = 1 + random(2, channels, dtype=torch.bfloat16) / 4
    given = weight.to(precision).double(), (shift - 1).to(precision).double()
    return (*given, 1e-5) if bias else (given[0], None, 1e-5)


def to(given: Any, device: str, precision: torch.dtype) -> Any:
    """Move the tensors of nested tuples to a device, in a dtype."""
    if isinstance(given, Tensor):
        return given.to(device, precision)
    if isinstance(given, tuple):
        moved = [to(x, device, precision) for x in given]
        return type(given)(*moved) if hasattr(given, "_fields") else tuple(moved)
    return given


def spread(given: Any) -> Any:
    """Give the tensors of nested tuples, but not their values, unusual strides."""
    if isinstance(given, Tensor):
        return given.repeat_interleave(2, -1)[..., ::2]
    if isinstance(given, tuple):
        moved = [spread(x) for x in given]
        return type(given)(*moved) if hasattr(given, "_fields") else tuple(moved)
    return given


def assert_no_worse(
    found: Tensor,
    exact: Tensor,
    own: Tensor,
    precision: torch.dtype,
    scale: Tensor | None = None,
    n_split: int = 1,
) -> None:
    """Check that the mean error of a result does not exceed that of PyTorch in this precision.

    Errors are relative to ``scale``, which is the exact result by default. Errors as large as those
    of rounding once are allowed, or as those of a number of split products, one after another.
    """
    size = rms(exact if scale is None else scale)
    error, allowed = (rms(x.cpu().double() - exact) / size for x in (found, own))
    limit = max(allowed, ROUNDING[precision] * n_split**0.5)
    assert error <= limit, f"the mean error is {error:.2e}, that of PyTorch {allowed:.2e}"


def pooled(compare: Callable[[], tuple[Tensor, ...]], n_rows: int, n_runs: int = 1) -> list[Tensor]:
    """Return the results of comparisons with fresh inputs, joined; more of them for few rows.

    The mean error of a handful of numbers is a coin toss.
    """
    runs = [compare() for _ in range(max(n_runs, _FEWEST_ROWS // n_rows))]
    return [torch.cat([x.cpu().flatten() for x in parts]) for parts in zip(*runs, strict=True)]


def rms(x: Tensor) -> float:
    """Return the root of the mean square."""
    return float(x.square().mean().sqrt())
