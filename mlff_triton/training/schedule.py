"""Learning rate of each step."""

from __future__ import annotations

import math

LAST = 1e-3  # learning rate at the end, of the peak


def learning_rate(step: int, steps: int, peak: float, warm_up: int) -> float:
    """Rise linearly to the peak, then follow half a cosine down to a thousandth of it.

    Parameters
    ----------
    step, steps : int
        Index of the step, and number of all steps.
    peak : float
        Highest learning rate.
    warm_up : int
        Number of steps until the peak.

    Returns
    -------
    float

    Examples
    --------
    >>> [round(learning_rate(k, 4, 1.0, 2), 3) for k in range(5)]
    [0.5, 1.0, 1.0, 0.501, 0.001]
    """
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / max(1, steps - warm_up)
    return peak * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * progress)))
