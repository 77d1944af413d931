"""How closely two numbers must agree: one table for all tests, dtype x derivative order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mlff_triton.errors import InputError

TOLERANCES: dict[str, tuple[float, float, float]] = {
    # relative errors of energies, of first derivatives (forces, virials) and of second ones
    "float64": (1e-11, 1e-9, 1e-7),
    "float32": (1e-6, 1e-5, 1e-4),
}
FINITE_DIFFERENCES: dict[str, tuple[float, float]] = {
    # step (Å, or strain), and the relative error of a first derivative taken with it
    "float64": (1e-4, 1e-6),  # short: cutoffs often leave a kink in the second derivative
    "float32": (1e-2, 5e-3),
}


def tolerance(order: int, dtype: str | torch.dtype = "float64") -> float:
    """Look up the relative error allowed between two computations of one quantity.

    Parameters
    ----------
    order : int
        Derivative order: 0 for energies, 1 for forces and virials, 2 for second derivatives.
    dtype : {"float64", "float32"} or torch.dtype
        Floating-point type that the less exact of the two works in.

    Raises
    ------
    InputError
        If the table has no such entry.

    Examples
    --------
    >>> tolerance(1, torch.float32)
    1e-05
    """
    orders = TOLERANCES[dtype_name(dtype)]
    if order not in range(len(orders)):
        raise InputError(f"there are tolerances for derivative orders 0, 1 and 2, not for {order}")
    return orders[order]


def dtype_name(dtype: str | torch.dtype) -> str:
    """Name a dtype as the tables do, or raise `InputError` if they do not have it."""
    name = str(dtype).removeprefix("torch.")
    if name not in TOLERANCES:
        raise InputError(f"there are tolerances for {', '.join(TOLERANCES)}, not for {name}")
    return name


def assert_close(
    actual: ArrayLike | torch.Tensor,
    expected: ArrayLike | torch.Tensor,
    order: int,
    dtype: str | torch.dtype = "float64",
    *,
    floor: float = 0.0,
) -> None:
    """Assert that two arrays agree to `tolerance`, relative to the largest expected number.

    Parameters
    ----------
    actual, expected : [...]
        Arrays or tensors of one shape and unit, on any device.
    order : int
        Derivative order, as for `tolerance`.
    dtype : {"float64", "float32"} or torch.dtype
        Floating-point type, as for `tolerance`.
    floor : float
        Errors are relative to this, in the unit of the arrays, if all numbers are smaller.

    Raises
    ------
    AssertionError
        If the shapes differ, the error is too large, or anything is NaN or infinite.
    InputError
        If there is no such tolerance.

    Examples
    --------
    >>> assert_close([1.0, 1e-12], [1.0, 0.0], order=1)
    """
    assert_within(actual, expected, tolerance(order, dtype), floor=floor)


def assert_within(
    actual: ArrayLike | torch.Tensor,
    expected: ArrayLike | torch.Tensor,
    relative: float,
    *,
    floor: float = 0.0,
) -> None:
    """Assert as `assert_close`, to a relative error that the caller names."""
    a, b = _as_array(actual), _as_array(expected)
    expect(a.shape == b.shape, f"the shape is {list(a.shape)} instead of {list(b.shape)}")
    expect(bool(np.isfinite(b).all()), "the expected values hold NaN or infinity")
    expect(bool(np.isfinite(a).all()), "the values hold NaN or infinity")
    if not a.size:
        return
    error, scale = np.abs(a - b), max(floor, float(np.abs(b).max()))
    worst = np.unravel_index(int(error.argmax()), error.shape)
    expect(
        bool(error[worst] <= relative * scale),
        f"{a[worst]!s} instead of {b[worst]!s} at {[int(i) for i in worst]}: "
        f"off by {error[worst]:.1e}, allowed is {relative:.0e} of {scale:.3g}",
    )


def expect(condition: bool, message: str) -> None:
    """Assert, under ``python -O`` too."""
    if not condition:
        raise AssertionError(message)


def _as_array(values: ArrayLike | torch.Tensor) -> NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    return np.asarray(values, dtype=np.float64)
