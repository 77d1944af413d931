from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import TypingError

from mlff_triton.kernels.common.cpu.algebra import algebra, double, larger, smaller
from mlff_triton.kernels.common.cpu.compilation import allocating_loop, loop
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


@algebra
def decode(codes, i, bits):
    """Return a number that is part of a code, and where its element is."""
    code = codes[i]
    return (code >> bits) & ((1 << bits) - 1), (code | 1 << 2) - i * 3


@loop
def take(x, codes, bits, out, first, last):
    """Write elements of an array of any layout, at an index within its bounds."""
    for i in range(first, last):
        number, other = decode(codes, i, bits)
        k = larger(smaller(number, x.shape[0] - 1), 0)
        out[i, 0] = double(x[k, 1]) * 0.1
        out[i, 1] = smaller(x[k, 0], 0.5) + larger(0.25, x[k, 0])
        out[i, 2] = other


@pytest.mark.parametrize("integer", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_integers_and_elements_of_arrays(dtype, integer, order):
    rng = np.random.default_rng(1)
    x, codes = rng.uniform(size=(5, 4)).astype(dtype), rng.integers(0, 64, 9, dtype=integer)
    given = x[:, ::2] if order == "strided" else np.asarray(x[:, :2], order=order)
    out = np.full((9, 3), np.nan)
    take(given, codes, 3, out, 0, 9)
    k = (codes >> 3).clip(0, 4)
    first, second = given[k, 0], given[k, 1]
    np.testing.assert_array_equal(out[:, 0], second.astype(np.float64) * 0.1)
    chosen = np.minimum(first, dtype(0.5)) + np.maximum(dtype(0.25), first)
    np.testing.assert_array_equal(out[:, 1], chosen)
    np.testing.assert_array_equal(out[:, 2], (codes | 4) - 3 * np.arange(9))


@algebra
def scaled(x, i, factor):
    x[i] = x[i] * factor


@loop
def scale_all(x, factor, first, last):
    for i in range(first, last):
        scaled(x, i, factor)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_elements_are_written_in_the_precision_of_their_array(dtype, step):
    x = np.arange(6, dtype=dtype)
    scale_all(x[::step], 2.5, 0, 3)
    expected = np.arange(6, dtype=dtype)
    expected[: 3 * step : step] = (expected[: 3 * step : step] * 2.5).astype(dtype)
    np.testing.assert_array_equal(x, expected)


def fill_by_array(out, first, last):
    values = np.empty(3)
    for i in range(first, last):
        values[0] = i
        out[i] = values[0]


def test_arrays_are_made_where_they_are_counted():
    """Elsewhere, they would never be freed, so the compiler refuses to make them."""
    out = np.full(3, np.nan)
    allocating_loop(fill_by_array)(out, 0, 3)
    np.testing.assert_array_equal(out, [0, 1, 2])
    with pytest.raises(TypingError, match="empty"):
        loop(fill_by_array)(out, 0, 3)
