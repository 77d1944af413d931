"""Discrete Fourier transforms of B-splines, by which smooth particle-mesh Ewald divides.

They are computed once per mesh on the CPU, in float64: U. Essmann et al., J. Chem. Phys. 103, 8577
(1995), https://doi.org/10.1063/1.470117, equation 4.4.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def moduli(size: int, order: int) -> list[float]:
    """Return the inverse squared moduli of a B-spline's transform, for all waves of a mesh.

    That of the highest frequency is zero. Its waves have no sign, so they have no gradient, and
    splines of odd order cannot represent them.

    Parameters
    ----------
    size : int
        Number of points, which is even.
    order : int
        Order of the B-spline.
    """
    knots = np.array([0.0, 1.0])  # values at 0, 1, ...
    for n in range(3, order + 1):
        points = np.arange(n)
        below = np.pad(knots, (1, 1))
        knots = (points * below[1:] + (n - points) * below[:-1]) / (n - 1)
    waves = np.exp(2j * np.pi / size * (np.outer(np.arange(size), np.arange(order)) % size))
    squared = np.abs(waves @ knots) ** 2
    squared[size // 2] = np.inf
    return list((1 / squared).tolist())


@lru_cache(maxsize=64)
def inverse_moduli(
    mesh: tuple[int, int, int], order: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return `moduli` along the three directions, [K_0 + K_1 + K_2], on a device.

    They are copied to a GPU once, so that later calls can be captured in a CUDA graph.
    """
    values = [value for size in mesh for value in moduli(size, order)]
    return torch.tensor(values, dtype=dtype, device=device)
