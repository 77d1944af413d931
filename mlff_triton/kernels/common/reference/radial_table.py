"""Cubic Hermite interpolation in a radial table, in plain PyTorch.

    f  = v + h (t (1 - t)^2 m + t^2 (3 - 2 t) s + t^2 (t - 1) m')
    f' = (1 - t) (1 - 3 t) m + 6 t (1 - t) s + t (3 t - 2) m'

with the value v and the slopes m and m' at the knots, the secant s, and the fraction t of an
interval of width h. The secant is tabulated because a difference of float32 values would lose
precision in the derivative.
"""

from __future__ import annotations

import torch
from torch import Tensor


def look_up(table: Tensor, interval: Tensor, fraction: Tensor, width: Tensor) -> Tensor:
    """Interpolate the tabulated functions.

    Parameters
    ----------
    table : [K + 1, 3, 3, F]
        Value, slope and secant at each knot: see `mlff_triton.engine.radial_tables`.
    interval : int [E]
        Interval of each distance.
    fraction, width : [E]
        Fraction of the interval, and its width in Å.

    Returns
    -------
    [3, E, F]
    """
    t, h = fraction, width
    weights = torch.stack([t * (1 - t) ** 2, t * t * (3 - 2 * t), t * t * (t - 1)]) * h
    rows = table.movedim(2, 0)  # [3, K + 1, 3, F]
    return rows[:, interval.long(), 0] + _blend(rows, interval.long(), weights)


def look_up_slope(table: Tensor, interval: Tensor, fraction: Tensor, width: Tensor) -> Tensor:
    """Return the derivatives of `look_up` with respect to the distance, [3, E, F]."""
    del width  # slopes and secants are derivatives already
    t = fraction
    weights = torch.stack([(1 - t) * (1 - 3 * t), 6 * t * (1 - t), t * (3 * t - 2)])
    return _blend(table.movedim(2, 0), interval.long(), weights)


def _blend(rows: Tensor, interval: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the slope at the first knot, the secant and the second slope."""
    first, last = rows[:, interval], rows[:, interval + 1]  # [3, E, 3, F]
    w = weights[:, None, :, None]
    return w[0] * first[:, :, 1] + w[1] * first[:, :, 2] + w[2] * last[:, :, 1]
