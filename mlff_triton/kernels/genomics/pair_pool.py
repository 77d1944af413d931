"""Bins of positions, pooled and normalized, from which AlphaGenome computes pairs of bins.

y = rms_norm(mean of the positions of a bin)      z = gelu(y)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate


@triton.jit
def _pair_pool_fwd_kernel(
    x_ptr,
    shift_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    z_ptr,
    EPS: tl.constexpr,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a row of y and z [bins, C] from WIDTH rows of x [bins WIDTH, C]. Grid: (bins,)."""
    bin_ = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    x_ptr += bin_ * WIDTH * C
    x = tl.zeros([BLOCK], tl.float32)
    for position in range(WIDTH):
        x += tl.load(x_ptr + position * C + column, inside, other=0.0).to(tl.float32)
    x = x / WIDTH + tl.load(shift_ptr + column, inside, other=0.0).to(tl.float32)
    x *= 1 / tl.sqrt(tl.sum(x * x, 0) / C + EPS)
    x *= tl.load(weight_ptr + column, inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + column, inside, other=0.0).to(tl.float32)
    y, z = x.to(y_ptr.dtype.element_ty), activate(x, "gelu").to(z_ptr.dtype.element_ty)
    tl.store(y_ptr + bin_ * C + column, y, inside)
    tl.store(z_ptr + bin_ * C + column, z, inside)


def pair_pool(
    x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float, width: int
) -> tuple[Tensor, Tensor]:
    """Average positions by bin, divide the means by their root mean square, and activate them.

    Parameters
    ----------
    x : [B, S, C]
        Positions, contiguous.
    shift : [C]
        Added to all positions.
    weight, bias, eps : [C], [C], float
        Normalization.
    width : int
        Number of positions in a bin, which divides S.

    Returns
    -------
    y, z : [B, S / width, C]
        Normalized means, and their GELU, of the dtype of ``x``.
    """
    batch, length, channels = x.shape
    y = x.new_empty(batch, length // width, channels)
    z = torch.empty_like(y)
    with torch.cuda.device_of(x):
        _pair_pool_fwd_kernel[(batch * (length // width),)](
            *(x, shift, weight, bias, y, z),
            EPS=eps,
            WIDTH=width,
            C=channels,
            BLOCK=triton.next_power_of_2(channels),
            num_warps=4,
        )
    return y, z
