"""Decimal text of many numbers at once: the characters of ``" %16.8f"``.

NumPy does the work without Python's global lock, so that a simulation continues in the meantime. It
is also many times faster than formatting one number after another.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

DECIMALS = 8
WIDTH = 17  # a blank and 16 characters
LIMIT = 999_999.0  # larger magnitudes may need more characters
TABULATED = 10_000  # integer parts with an entry in the table

FIELD = np.dtype([("whole", "u8"), ("point", "u1"), ("high", "u4"), ("low", "u4")])


def fits(values: npt.NDArray[np.float64]) -> bool:
    """Return True if all values are finite and small enough for `fixed_point`."""
    return bool((np.abs(values) <= LIMIT).all())


def fixed_point(values: npt.NDArray[np.float64], out: npt.NDArray[np.void]) -> None:
    """Write values as text, with the same characters as ``" %16.8f" % value``.

    Parameters
    ----------
    values : float64 [N, C]
        Numbers for which `fits` is true.
    out : FIELD [N, C]
        Receives 17 characters per number.
    """
    scaled = np.abs(values) * 10.0**DECIMALS
    digits = np.rint(scaled)
    # The product is rounded. Near a tie, and beyond the table, Python formats the exact value.
    from_tie = np.abs(scaled - np.floor(scaled) - 0.5)
    is_special = (from_tie <= scaled * 2.0**-52) | (digits >= TABULATED * 10.0**DECIMALS)
    digits[is_special] = 0

    fixed = digits.astype(np.int64)
    whole = fixed // 10**DECIMALS
    fraction = (fixed - whole * 10**DECIMALS).astype(np.uint32)
    high = fraction // 10_000
    wholes, quadruples = _tables()
    out["whole"] = wholes[whole + TABULATED * np.signbit(values)]
    out["point"] = ord(".")
    out["high"] = quadruples[high]
    out["low"] = quadruples[fraction - 10_000 * high]
    for index in zip(*np.nonzero(is_special), strict=True):
        text = f" {values[index]:16.{DECIMALS}f}".encode()
        out[index] = np.frombuffer(text, FIELD)[0]


@cache
def _tables() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Return eight characters of each integer part, then of each negative one; four digits."""
    wholes = [f"{sign}{whole}".rjust(8) for sign in ("", "-") for whole in range(TABULATED)]
    quadruples = [f"{digits:04d}" for digits in range(10_000)]
    return np.array(wholes, "S8").view(np.uint64), np.array(quadruples, "S4").view(np.uint32)
