"""Tolerances, and the comparisons that use them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.testing import (
    assert_close,
    tolerance,
)


@pytest.mark.parametrize("dtype", ["float32", "float64", torch.float32, torch.float64])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_tolerance_separates_close_from_far(dtype, order):
    expected = torch.tensor([[3.0, -50.0], [1e-9, 0.0]], dtype=torch.float64)
    assert_close(expected + 0.9 * 50 * tolerance(order, dtype), expected, order, dtype)
    with pytest.raises(AssertionError, match=r"at \[\d, \d\]"):
        assert_close(expected - 1.1 * 50 * tolerance(order, dtype), expected, order, dtype)


def test_tolerances_grow_with_order_and_shrink_with_precision():
    for order in range(3):
        assert tolerance(order, "float64") < tolerance(order, "float32")
    for dtype in ("float32", "float64"):
        assert tolerance(0, dtype) < tolerance(1, dtype) < tolerance(2, dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_close_to_nothing(bad):
    for actual, expected in (([bad, 1.0], [0.0, 1.0]), ([0.0], [bad]), ([bad], [bad])):
        with pytest.raises(AssertionError, match="NaN or infinity"):
            assert_close(actual, expected, 2, "float32", floor=1e300)


def test_shapes_must_agree():
    with pytest.raises(AssertionError, match="shape"):
        assert_close(np.zeros((2, 1)), np.zeros(2), 0)
    assert_close(np.zeros((0, 3)), torch.zeros(0, 3), 0)


def test_zero_is_exact_unless_a_floor_says_what_is_large():
    with pytest.raises(AssertionError):
        assert_close([1e-15], [0.0], 1)
    assert_close([1e-15], [0.0], 1, floor=1.0)


@pytest.mark.parametrize(("order", "dtype"), [(3, "float64"), (-1, "float64"), (0, "int64")])
def test_no_tolerance_is_invented(order, dtype):
    with pytest.raises(InputError):
        tolerance(order, dtype)
