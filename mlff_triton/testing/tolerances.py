"""Tolerances of all tests, in one table of dtype and derivative order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mlff_triton.errors import InputError

TOLERANCES: dict[str, tuple[float, float, float]] = {
    # relative errors of energies, of first derivatives (forces, virials), of second derivatives
    "float64": (1e-11, 1e-9, 1e-7),
    "float32": (1e-6, 1e-5, 1e-4),
}
FINITE_DIFFERENCES: dict[str, tuple[float, float]] = {
    # step (Å or strain), and the relative error of the first derivative that it gives
    "float64": (1e-4, 1e-6),  # short, as cutoffs often make the second derivative discontinuous
    "float32": (1e-2, 5e-3),
}


def tolerance(order: int, dtype: str | torch.dtype = "float64") -> float:
    """Return the relative error allowed between two computations of the same quantity.

    Parameters
    ----------
    order : int
        Derivative order: 0 for energies, 1 for forces and virials, 2 for second derivatives.
    dtype : {"float64", "float32"} or torch.dtype
        Floating-point type of the less accurate computation.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If the table has no entry for the order or the dtype.

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
    """Return the name of a dtype in the tables, or raise `InputError` if it is missing."""
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
    """Assert that two arrays agree to `tolerance`, relative to the largest expected value.

    Parameters
    ----------
    actual, expected : [...]
        Arrays or tensors of the same shape and unit, on any device.
    order : int
        Derivative order, as for `tolerance`.
    dtype : {"float64", "float32"} or torch.dtype
        Floating-point type, as for `tolerance`.
    floor : float
        Smallest scale of relative errors, in the unit of the arrays. It applies if all expected
        values are smaller.

    Raises
    ------
    AssertionError
        If the shapes differ, the error is too large, or a value is NaN or infinite.
    InputError
        If the table has no entry for the order or the dtype.

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
    """Assert that two arrays agree to a given relative error.

    Parameters
    ----------
    actual, expected : [...]
        Arrays or tensors of the same shape and unit, on any device.
    relative : float
        Largest error allowed, relative to the largest expected value.
    floor : float
        Smallest scale of relative errors, as for `assert_close`.

    Raises
    ------
    AssertionError
        If the shapes differ, the error is too large, or a value is NaN or infinite.
    """
    a, b = _as_array(actual), _as_array(expected)
    expect(a.shape == b.shape, f"the shape is {list(a.shape)} instead of {list(b.shape)}")
    expect(bool(np.isfinite(b).all()), "the expected values contain NaN or infinity")
    expect(bool(np.isfinite(a).all()), "the values contain NaN or infinity")
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
    """Raise `AssertionError` unless a condition holds, even under ``python -O``."""
    if not condition:
        raise AssertionError(message)


def _as_array(values: ArrayLike | torch.Tensor) -> NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    return np.asarray(values, dtype=np.float64)
