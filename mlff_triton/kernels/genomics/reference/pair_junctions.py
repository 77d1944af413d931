"""Splice junctions, which are pairs of a donor and an acceptor, in plain PyTorch.

u_tk = rotate(s_t x_k + o_t)      reads_dat = softplus(r u_td . w_ta)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def rotated_sites(
    x: Tensor, scale: Tensor, shift: Tensor, cos: Tensor, sin: Tensor, organism: Tensor
) -> Tensor:
    """Compute `mlff_triton.kernels.genomics.pair_junctions.rotated_sites`."""
    y = x[:, None] * scale[organism][:, :, None] + shift[organism][:, :, None]
    a, b = y.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


def junction_reads(
    products: Tensor,
    factor: float,
    sites: Tensor,
    mask: Tensor,
    organism: Tensor,
    out: Tensor,
) -> None:
    """Compute `mlff_triton.kernels.genomics.pair_junctions.junction_reads`."""
    known = sites >= 0
    valid = (known[:, 0, :, None] & known[:, 1, None])[..., None] & mask[organism][:, None, None]
    out.copy_(softplus(factor * products.permute(0, 2, 3, 1).to(out.dtype)) * valid)
