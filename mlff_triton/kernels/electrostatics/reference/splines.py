"""B-splines, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def spline_weights(fraction: Tensor, order: int) -> Tensor:
    """Return the values ``M(f + t)`` of a B-spline, [..., order], for ``t`` from 0 to order - 1.

    Parameters
    ----------
    fraction : [...]
        Numbers ``f`` from 0 to 1.
    order : int
        Order of the B-spline, which is positive from 0 to ``order``.
    """
    values = [fraction, 1 - fraction]
    for n in range(3, order + 1):
        below = [*values, torch.zeros_like(fraction)]
        values = [
            ((fraction + t) * below[t] + (n - t - fraction) * below[t - 1]) / (n - 1)
            for t in range(n)
        ]
    return torch.stack(values, dim=-1)


def spline_slopes(fraction: Tensor, order: int) -> Tensor:
    """Return the derivatives of `spline_weights`, [..., order]."""
    lower = spline_weights(fraction, order - 1)
    end = torch.zeros_like(lower[..., :1])
    return torch.cat([lower, end], dim=-1) - torch.cat([end, lower], dim=-1)
