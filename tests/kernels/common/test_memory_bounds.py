"""Interpreted kernels fail where they leave the memory of their tensors."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")


@triton.jit
def _copy_kernel(x_ptr, out_ptr, offset, n, BLOCK: tl.constexpr):  # noqa: N803 (as in kernels)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offset + at, at < n)
    tl.store(out_ptr + at, x, at < n)


def copy(x: torch.Tensor, out: torch.Tensor, offset: int, n: int) -> None:
    _copy_kernel[(1,)](x, out, offset, n, BLOCK=8)


def test_kernels_reach_all_of_a_tensor_and_of_its_storage():
    x = torch.arange(8.0)
    out = torch.zeros(8)
    copy(x, out, 0, 8)
    copy(x[:4], out, 4, 4)
    assert out.tolist() == [4, 5, 6, 7, 4, 5, 6, 7]


@pytest.mark.parametrize(("offset", "n", "size"), [(1, 8, 8), (-1, 8, 8), (0, 8, 7)])
def test_kernels_that_read_or_write_beyond_are_named(offset, n, size):
    with pytest.raises(InterpreterError, match="_copy_kernel reads or writes beyond its tensors"):
        copy(torch.zeros(8), torch.zeros(size), offset, n)
