from __future__ import annotations

import numpy as np
import pytest

from mlff_triton.kernels.common.cpu.compilation import loop
from mlff_triton.kernels.common.cpu.vectors import (
    WIDEST,
    lanes_of,
    load_vector,
    spread,
    store_vector,
    total,
)


@loop
def combine(a, b, number, lanes, out, sums, first, last):
    for i in range(first, last):
        for f in range(0, a.shape[1], len(lanes)):
            x, y = load_vector(a, (i, f), lanes), load_vector(b, (i, f), lanes)
            found = (2 * x - y / number) * -x + spread(number, lanes)
            found += x
            found *= y
            store_vector(out, (i, f), found)
            sums[i] += total(found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("channels", [1, 48])
def test_arithmetic(channels, dtype):
    a, b = np.random.default_rng(0).uniform(1, 2, (2, 5, channels)).astype(dtype)
    out, sums, number = np.full_like(a, np.nan), np.zeros(5, dtype), dtype(3)
    combine(a, b, number, lanes_of(channels, a.itemsize), out, sums, 1, 4)
    expected = ((2 * a - b / number) * -a + number + a) * b
    np.testing.assert_allclose(out[1:4], expected[1:4], rtol=1e-5 if dtype == np.float32 else 1e-13)
    np.testing.assert_allclose(sums, [0, *out[1:4].sum(1), 0], rtol=1e-5)
    assert np.isnan(out[[0, 4]]).all()


@pytest.mark.parametrize("itemsize", [4, 8])
def test_lanes_divide_channels(itemsize):
    for channels in range(1, 200):
        lanes = len(lanes_of(channels, itemsize))
        assert channels % lanes == 0
        assert lanes == WIDEST // itemsize or channels % (2 * lanes)
