from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.reference import segment_sum as reference
from mlff_triton.kernels.ops.segment_sum import segment_sum
from mlff_triton.testing import assert_close


def random_rows(sizes: list[int], channels: int, device: str, dtype: torch.dtype):
    """Return rows of positive numbers, so that sums lose no precision by cancellation."""
    generator = torch.Generator().manual_seed(channels)
    x = torch.rand(sum(sizes), channels, generator=generator, dtype=torch.float64)
    row_ptr = torch.tensor([0, *sizes]).cumsum(0)
    return x.to(device, dtype).requires_grad_(), row_ptr.to(device)


@pytest.mark.parametrize(
    ("sizes", "channels"),
    [
        ([1], 1),
        ([63, 0, 1, 500], 1),
        ([63, 0, 1, 500], 33),
        ([0, 0], 8),
        ([20000], 1),
        ([3, 700], 160),
    ],
)
@pytest.mark.parametrize("accumulate", [None, "float64"])
def test_agrees_with_the_reference(sizes, channels, accumulate, device, dtype):
    x, row_ptr = random_rows(sizes, channels, device, dtype)
    sums = segment_sum(x, row_ptr, accumulate)
    exact = reference.segment_sum(x.detach().double(), row_ptr)
    assert sums.dtype is (torch.float64 if accumulate else dtype)
    assert_close(sums, exact, 0, sums.dtype)
    assert torch.equal(sums, segment_sum(x, row_ptr.int(), accumulate))
    seed = torch.randn_like(sums).requires_grad_()
    (grad,) = torch.autograd.grad(sums, x, seed, create_graph=True)
    assert grad.dtype is dtype
    assert torch.equal(grad, seed.to(dtype).repeat_interleave(row_ptr.diff(), dim=0))
    seed_of_grad = torch.rand_like(grad)
    (second,) = torch.autograd.grad(grad, seed, seed_of_grad)
    assert_close(second, reference.segment_sum(seed_of_grad.double(), row_ptr), 1, dtype)


def test_one_channel_needs_no_axis(device):
    x, row_ptr = random_rows([3, 4], 1, device, torch.float64)
    sums = segment_sum(x[:, 0], row_ptr)
    assert_close(sums, reference.segment_sum(x[:, 0], row_ptr), 0)


def test_large_energies_keep_their_digits(device):
    x = torch.full((3001,), -27000.1, device=device)
    row_ptr = torch.tensor([0, len(x)], device=device)
    assert_close(segment_sum(x, row_ptr, "float64"), x.double().sum()[None], 0)


def test_derivatives(device):
    x, row_ptr = random_rows([2, 0, 3], 3, device, torch.float64)
    for function in (segment_sum, reference.segment_sum):
        assert torch.autograd.gradcheck(lambda x, f=function: f(x, row_ptr), x)
        assert torch.autograd.gradgradcheck(lambda x, f=function: f(x, row_ptr), x)


def test_registered_completely(device):
    x, row_ptr = random_rows([2, 0, 3], 3, device, torch.float32)
    torch.library.opcheck(torch.ops.mlff_triton.segment_sum, (x, row_ptr, torch.float64))
    grad = torch.ones(3, 3, device=device, requires_grad=True)
    operator = torch.ops.mlff_triton.segment_sum_backward
    torch.library.opcheck(operator, (grad, row_ptr, 5, torch.float32))


def row_ptr_like(*values: float, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(2, 2, 2), row_ptr_like(0, 2)), r"instead of \[M, F\] or \[M\]"),
        ((torch.ones(2).long(), row_ptr_like(0, 2)), "use float32 or float64"),
        ((torch.ones(2), row_ptr_like(0, 2, dtype=torch.float32)), "must be int64 or int32"),
        ((torch.ones(2), row_ptr_like()), "at least one element"),
        ((torch.ones(2), row_ptr_like(0, 2)[None]), r"row_ptr has the shape \[1, 2\]"),
        ((torch.ones(2), row_ptr_like(0, 2), "float16"), "use 'float64' or None"),
    ],
)
def test_refuses_what_does_not_fit(arguments, message, device):
    tensors = [a.to(device) if isinstance(a, Tensor) else a for a in arguments]
    with pytest.raises(InputError, match=message):
        segment_sum(*tensors)
