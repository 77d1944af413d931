from __future__ import annotations

import numpy as np
import pytest

from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.compilation import loop
from mlff_triton.kernels.common.cpu.vectors import lanes_of, load_three, store_all


@algebra
def blend(x, pair):
    """Return three values of one, which may be a vector, and two numbers."""
    a, (b, c) = x, pair
    return a + b, 1 - a * b / 3, -(b - c) * (2.5 + a) / (4 / a)


@algebra
def blend_twice(x, pair):
    first, second, third = blend(x, pair)
    return first, blend(second, pair)[1], third


@loop
def fill(x, b, c, lanes, out, numbers, first, last):
    for i in range(first, last):
        for f in range(0, x.shape[2], len(lanes)):
            vector, _, _ = load_three(x, (i, None, f), lanes)
            store_all(out, (None, i, f), blend_twice(vector, (b, c)))
        found = blend_twice(x[i, 0, 0], (b, c))
        numbers[0, i], numbers[1, i], numbers[2, i] = found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_are_part_of_loops(dtype):
    """Vectors, numbers and constants give what the function itself gives."""
    x = np.random.default_rng(0).uniform(1, 2, (4, 3, 32)).astype(dtype)
    out, numbers = np.full((3, 4, 32), np.nan, dtype), np.full((3, 4), np.nan, dtype)
    b, c = dtype(1.3), dtype(0.7)
    fill(x, b, c, lanes_of(32, x.itemsize), out, numbers, 0, 4)
    expected = np.stack(blend_twice(x[:, 0], (b, c)))
    assert expected.dtype == dtype
    np.testing.assert_allclose(out, expected, rtol=20 * np.finfo(dtype).eps)
    np.testing.assert_allclose(numbers, expected[:, :, 0], rtol=20 * np.finfo(dtype).eps)


@loop
def store_second(x, out, first, last):
    for i in range(first, last):
        out[i] = blend(x[i], (x[i], x[i]))[1]


def test_constants_do_not_widen_numbers():
    x, out = np.linspace(0.1, 0.9, 9, dtype=np.float32), np.empty(9)
    store_second(x, out, 0, 9)
    np.testing.assert_array_equal(out, out.astype(np.float32))
    np.testing.assert_allclose(out, 1 - x * x / 3, rtol=1e-6)
