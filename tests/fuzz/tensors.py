"""Tensors in place of the weights of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.fuzz.damage import EXTREMES, choice, extreme

DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8),
    *(torch.bool, torch.complex64),
)


def other_dtype(rng: np.random.Generator, tensor: Tensor) -> Tensor:
    """Convert to another dtype."""
    return tensor.to(choice(rng, DTYPES))


def other_shape(rng: np.random.Generator, tensor: Tensor) -> Tensor:
    """Transpose, flatten, cut, extend or repeat."""
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x.T.contiguous() if x.ndim == 2 else x[None],
        lambda x: x.flatten(),
        lambda x: x.flatten()[:-1].clone(),
        lambda x: x[None],
        lambda x: x.repeat(2, *[1] * (x.ndim - 1)) if x.ndim else x.repeat(2),
        lambda x: x.new_zeros(0),
        lambda x: x.new_zeros(()),
        lambda x: x.new_zeros([1] * 40),
    )
    return choice(rng, changes)(tensor)


def other_values(rng: np.random.Generator, tensor: Tensor) -> Tensor:
    """Replace one value or all by an extreme one."""
    changed = tensor.clone().flatten()
    extreme = float(choice(rng, EXTREMES))
    if not changed.is_floating_point():
        extreme = min(max(extreme if np.isfinite(extreme) else 0, -(2**62)), 2**62)
    value = torch.tensor(extreme, dtype=torch.float64).to(changed.dtype)
    if rng.random() < 0.5 and len(changed):
        changed[int(rng.integers(len(changed)))] = value
    else:
        changed.fill_(value)
    return changed.reshape(tensor.shape)


def other_layout(rng: np.random.Generator, tensor: Tensor) -> Any:
    """Change the strides or the layout, or pretend to have far more elements."""
    changes: tuple[Callable[[Tensor], Any], ...] = (
        lambda x: x.flatten().flip(0).expand(2, -1)[0],
        lambda x: torch.as_strided(x.flatten(), x.shape, [0] * x.ndim),
        lambda x: x.new_zeros(1).expand(10**8),
        lambda x: x.new_zeros(1).expand(10**5, 10**5),
        lambda x: x.to_sparse(),
        lambda x: x.to("meta"),
        lambda x: torch.nn.Parameter(x) if x.is_floating_point() else x,
        lambda x: x.T if x.ndim == 2 else x,
    )
    return choice(rng, changes)(tensor)


def other_tensor(rng: np.random.Generator, tensor: Tensor, *, only_dense: bool) -> Any:
    """Draw something in place of a weight, for formats that hold only dense tensors or any."""
    changes = (other_dtype, other_shape, other_values)
    if only_dense:
        return choice(rng, changes)(rng, tensor)
    if rng.random() < 0.2:
        return extreme(rng)
    return choice(rng, (*changes, other_layout))(rng, tensor)
