"""Weights of models, read and combined in float64, and converted at the end.

Converted weights are contiguous, as kernels require, whatever the strides of the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mlff_triton.kernels.genomics.types import Activation
from mlff_triton.kernels.types.linear import Linear
from mlff_triton.kernels.types.norm import Norm

Weights = TypeVar("Weights")


def exact(tensor: Tensor) -> Tensor:
    """Return a parameter or buffer in float64, contiguous."""
    return tensor.detach().double().contiguous()


def exact_linear(linear: nn.Linear) -> Linear:
    """Return the transposed weight and the bias of a linear map, in float64."""
    return Linear(exact(linear.weight).T, exact(linear.bias))


def exact_norm(norm: Any) -> Norm:
    """Return the weight and bias of a layer normalization, in float64, and its eps."""
    return exact(norm.weight), exact(norm.bias), norm.eps


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of weights that stay float32 in half precision: float32 or float64."""
    return torch.promote_types(dtype, torch.float32)


def converted(weights: Weights, dtype: torch.dtype) -> Weights:
    """Convert the float64 tensors in tuples, lists and dictionaries, and make all contiguous.

    Tensors of other dtypes, such as masks and tensors that were converted before, keep theirs. An
    `Activation` stays float32 in half precision.
    """
    found: Weights = _converted(weights, dtype)
    return found


def with_parts(value: tuple[Any, ...], parts: Iterable[Any]) -> Any:
    """Return parts in a tuple, or a named tuple, of the type of ``value``."""
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return (value.to(dtype) if value.dtype == torch.float64 else value).contiguous()
    if isinstance(value, list):
        return [_converted(part, dtype) for part in value]
    if isinstance(value, dict):
        return {name: _converted(part, dtype) for name, part in value.items()}
    if isinstance(value, tuple):
        own = wide_dtype(dtype) if isinstance(value, Activation) else dtype
        parts = [_converted(part, own) for part in value]
        return with_parts(value, parts)
    return value
