"""3x3 tensors stored as nine components: parts, norms and products.

The tensor ``X = I 1 + A(a) + S`` of each atom and channel is stored component first, as
``x[9, N, F]``:

    x[0]    I, one third of the trace
    x[1:4]  a, with A(a) v = a x v        (X_21 - X_12 = 2 a_0, ...)
    x[4:9]  S_00, S_01, S_02, S_11, S_12  (S_22 = -S_00 - S_11)
"""

from __future__ import annotations

import torch
from torch import Tensor

PARTS = (1, 3, 5)  # numbers of components of I, a and S
PART_OF_COMPONENT = (0, 1, 1, 1, 2, 2, 2, 2, 2)


def compose(x: Tensor) -> Tensor:
    """Convert nine components [9, N, F] to 3x3 tensors [3, 3, N, F]."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x.unbind(0)
    rows = (
        (i + s00, s01 - a2, s02 + a1),
        (s01 + a2, i + s11, s12 - a0),
        (s02 - a1, s12 + a0, i - s00 - s11),
    )
    return torch.stack([torch.stack(row) for row in rows])


def decompose(t: Tensor) -> Tensor:
    """Convert 3x3 tensors [3, 3, N, F] to nine components [9, N, F]."""
    t00, t01, t02, t10, t11, t12, t20, t21, t22 = t.flatten(0, 1).unbind(0)
    trace = (t00 + t11 + t22) / 3
    skew = (0.5 * (t21 - t12), 0.5 * (t02 - t20), 0.5 * (t10 - t01))
    symmetric = (
        t00 - trace,
        0.5 * (t01 + t10),
        0.5 * (t02 + t20),
        t11 - trace,
        0.5 * (t12 + t21),
    )
    return torch.stack([trace, *skew, *symmetric])


def irrep_norms(x: Tensor) -> Tensor:
    """Compute the squared Frobenius norms of the three parts: [9, N, F] -> [3, N, F]."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x.square().unbind(0)
    s22 = (x[4] + x[7]) ** 2
    return torch.stack([3 * i, 2 * (a0 + a1 + a2), s00 + s11 + s22 + 2 * (s01 + s02 + s12)])


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply 3x3 tensors, each [3, 3, N, F]."""
    return (a[:, :, None] * b[None]).sum(1)


def scale(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each of the three parts by a factor: [9, N, F] and [N, 3, F] -> [9, N, F]."""
    parts = zip(x.split(PARTS), factors.unbind(1), strict=True)
    return torch.cat([part * factor for part, factor in parts])
