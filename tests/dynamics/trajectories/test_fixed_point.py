"""Text of numbers, character by character as Python formats them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton.dynamics.trajectories.fixed_point import FIELD, LIMIT, fits, fixed_point


def formatted(values):
    array = np.array(values, dtype=np.float64)[:, None]
    out = np.full(array.shape, b"?" * FIELD.itemsize).view(FIELD)
    fixed_point(array, out)
    return out.tobytes().decode()


def expected(values):
    return "".join(f" {value:16.8f}" for value in values)


@given(st.lists(st.floats(-LIMIT, LIMIT), min_size=1))
def test_any_numbers(values):
    assert formatted(values) == expected(values)


@given(st.lists(st.integers(-(10**13), 10**13), min_size=1))
def test_numbers_near_ties(digits):
    values = [(digit + 0.5) * 1e-8 for digit in digits]
    assert formatted(values) == expected(values)


EDGES = {
    "exact ties": [2.0**-9, 3 * 2.0**-9, -(2.0**-9), 0.5 + 2.0**-9],
    "signed zeros": [0.0, -0.0, -1e-12, 1e-12, -5e-324],
    "carries": [0.999999995, 9.999999999, -99.9999999999, 9999.999999994, 9999.999999996],
    "wide": [9999.0, 10_000.0, -10_000.5, 123_456.789, LIMIT, -LIMIT],
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    assert formatted(EDGES[name]) == expected(EDGES[name])


def test_many_numbers_of_a_simulation():
    rng = np.random.default_rng(0)
    values = rng.normal(size=20_000) * rng.choice([1e-9, 1e-3, 1.0, 50.0, 3000.0], 20_000)
    assert formatted(values) == expected(values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e6, -1e300])
def test_values_that_do_not_fit_are_recognized(value):
    assert fits(np.array([1.0, LIMIT, -LIMIT]))
    assert not fits(np.array([1.0, value]))
