"""Discrete Fourier transforms of B-splines, the divisors of smooth particle-mesh Ewald.

After U. Essmann et al., J. Chem. Phys. 103, 8577 (1995), https://doi.org/10.1063/1.470117, equation
4.4.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


def moduli(size: int, order: int, device: torch.device) -> Tensor:
    """Compute the inverse squared moduli of a B-spline's transform, without waiting for a GPU.

    That of the highest frequency is zero. Its waves have no sign, so they have no gradient, and
    splines of odd order cannot represent them.

    Parameters
    ----------
    size : int
        Number of points, which is even.
    order : int
        Order of the B-spline.
    device : torch.device
        Device that computes.

    Returns
    -------
    float64 [size]
    """
    waves = torch.arange(size, dtype=torch.float64, device=device)
    real, imaginary = torch.zeros_like(waves), torch.zeros_like(waves)
    for k, value in enumerate(_values_at_points(order)):
        angle = 2 * math.pi / size * (waves * k % size)
        real, imaginary = real + value * angle.cos(), imaginary + value * angle.sin()
    return torch.where(waves == size // 2, 0.0, 1 / (real**2 + imaginary**2))


def _values_at_points(order: int) -> list[float]:
    """Return the values of a B-spline at 0, 1, ... below its order."""
    values = [0.0, 1.0]
    for n in range(3, order + 1):
        below = [0.0, *values, 0.0]
        values = [(x * below[x + 1] + (n - x) * below[x]) / (n - 1) for x in range(n)]
    return values


@lru_cache(maxsize=64)
def inverse_moduli(
    mesh: tuple[int, int, int], order: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return `moduli` along the three directions, [K_0 + K_1 + K_2], on a device.

    They are copied to a GPU once, so that later calls can be captured in a CUDA graph.
    """
    host = torch.device("cpu")
    return torch.cat([moduli(size, order, host) for size in mesh]).to(device, dtype)
