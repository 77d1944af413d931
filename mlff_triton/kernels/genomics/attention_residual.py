"""Residual connections of a transformer whose rows are kept in float32 between its maps.

    x <- x + change      y = x in half precision

Maps read rows in half precision. If only rows in half precision were kept, every block would round
the sum of all blocks before it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _attention_residual_fwd_kernel(x_ptr, change_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    """Add the change to x in place, and write it to y too. Grid: (blocks of elements,)."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask, other=0.0)
    x += tl.load(change_ptr + offsets, mask, other=0.0)
    tl.store(x_ptr + offsets, x, mask)
    tl.store(y_ptr + offsets, x.to(y_ptr.dtype.element_ty), mask)


def attention_residual(x: Tensor, change: Tensor) -> Tensor:
    """Add a change to rows in place, and return them in half precision, without gradients.

    Parameters
    ----------
    x : float32 [R, C]
        Rows, contiguous; modified in place.
    change : [R, C]
        Result of a map, float16 or bfloat16, contiguous.

    Returns
    -------
    [R, C]
        New rows, of the dtype of ``change``.
    """
    y = torch.empty_like(change)
    n_elements = x.numel()
    with torch.cuda.device_of(x):
        _attention_residual_fwd_kernel[(triton.cdiv(n_elements, _BLOCK),)](
            x, change, y, n_elements, BLOCK=_BLOCK, num_warps=4
        )
    return y
