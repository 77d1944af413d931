"""Random numbers against published test vectors, the reference, and their distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from scipy import stats

from mlff_triton.kernels.dynamics import random
from mlff_triton.kernels.dynamics.reference import random as reference

PI = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], 0xA4093822 | 0x299F31D0 << 32
KNOWN = [  # of Random123, https://github.com/DEShawResearch/random123, tests/kat_vectors
    ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([2**32 - 1] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (*PI, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]


@pytest.mark.parametrize(("counters", "key", "expected"), KNOWN)
def test_philox_is_the_published_one(counters, key, expected):
    found = reference.philox(key, np.array(counters, dtype=np.uint64)[:, None])
    assert found[:, 0].tolist() == expected


@triton.jit
def _draw_kernel(out_ptr, seed, step_ptr, stream, normal: tl.constexpr):
    item = tl.arange(0, 64)
    step = tl.load(step_ptr)
    if normal:
        numbers = random.normals(seed, step, random.BAROSTAT, item, stream)
    else:
        numbers = random.uniforms(seed, step, random.BAROSTAT, item, stream)
    for k in tl.static_range(4):
        tl.store(out_ptr + 64 * k + item, numbers[k])


@pytest.mark.parametrize("step", [0, 7, 2**31 + 5, 2**40 + 1])
@pytest.mark.parametrize("seed", [0, 12345678901234])
def test_kernels_draw_the_same_numbers(step, seed, device):
    steps = torch.tensor([step], device=device)
    for normal in (False, True):
        out = torch.empty(4, 64, dtype=torch.float64, device=device)
        _draw_kernel[(1,)](out, seed, steps, 9, normal=normal)
        draw = reference.normals if normal else reference.uniforms
        expected = draw(seed, step, reference.BAROSTAT, torch.arange(64), 9)
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-13, atol=1e-13)


def test_every_counter_matters():
    item = torch.arange(50)
    drawn = [
        reference.normals(seed, step, purpose, item, stream)
        for seed in (0, 1, 1 << 32)
        for step in (0, 1, 2**31, 2**32)
        for purpose in range(3)
        for stream in (0, 1)
    ]
    numbers = torch.stack(drawn).flatten()
    assert len(numbers.unique()) == len(numbers)


def test_numbers_are_normal_and_uncorrelated():
    item = torch.arange(20_000)
    first, second = (reference.normals(3, step, 0, item, 0) for step in (0, 1))
    for numbers in (*first, *second):
        assert stats.kstest(numbers.numpy(), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(torch.cat([first, second]).numpy()) - np.eye(8)).max() < 0.03
