"""Rows of atoms in PyTorch, block by block, and their normalization."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.threads import in_parallel

ROWS = 128
"""Rows of a block, whose intermediate results stay in the cache of a core."""
EPS = 1e-5


def over_rows(function: Callable[[int, int], None], n_rows: int) -> None:
    """Call a function with the first row of each block and the row after its last one."""
    blocks = [(first, min(first + ROWS, n_rows)) for first in range(0, n_rows, ROWS)]
    in_parallel(function, blocks)


def normalize_rows(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """Apply a layer norm to rows [N, C]."""
    out: Tensor = torch.native_layer_norm(x, x.shape[1:], gain, shift, EPS)[0]
    return out


def normalize_rows_backward(grad: Tensor, x: Tensor, gain: Tensor) -> Tensor:
    """Return the gradient of rows, given that of `normalize_rows`."""
    _, mean, rstd = torch.native_layer_norm(x, x.shape[1:], None, None, EPS)
    given = grad, x, x.shape[1:], mean, rstd, gain, None
    out: Tensor = torch.ops.aten.native_layer_norm_backward(*given, [True, False, False])[0]
    return out
