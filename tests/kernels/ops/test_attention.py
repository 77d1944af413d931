from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.ops.attention import attention
from mlff_triton.kernels.ops.reference import attention as reference
from mlff_triton.testing import assert_close
from tests.support.operators import assert_matches

BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        not torch.cuda.is_available(), reason="Triton's interpreter multiplies bfloat16 as integers"
    ),
)
LENGTHS = [(1,), (5, 0, 33), (130, 64)]
DIMS = [(16, 16), (24, 24), (32, 192), (128, 64)]  # D of queries and keys, V of values


def pointers(lengths: tuple[int, ...], device: str) -> Tensor:
    return torch.tensor([0, *lengths], device=device).cumsum(0)


def random_inputs(
    lengths: tuple[int, ...],
    device: str,
    dtype: torch.dtype = torch.float64,
    heads: int = 2,
    groups: int = 2,
    dims: tuple[int, int] = (16, 16),
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Return random queries, keys and values, row pointers and the maximum length."""
    random = torch.Generator().manual_seed(sum(lengths))
    sizes = (heads, dims[0]), (groups, dims[0]), (groups, dims[1])
    tensors = (torch.randn(sum(lengths), *size, generator=random) for size in sizes)
    q, k, v = (t.to(device, dtype) for t in tensors)
    return q, k, v, pointers(lengths, device), max(lengths)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_matches_the_reference(lengths, device, dtype):
    assert_matches(attention, reference.attention, *random_inputs(lengths, device, dtype))


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_head_dimensions(dims, device, dtype):
    inputs = random_inputs((40, 21), device, dtype, dims=dims)
    assert_matches(attention, reference.attention, *inputs)


def test_the_reference_is_pytorchs(device):
    q, k, v, row_ptr, _ = random_inputs((30,), device)
    out = reference.attention(q, k, v, row_ptr, 30)
    expected = scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)))
    assert_close(out, expected.transpose(0, 1), 0)


@pytest.mark.parametrize("groups", [1, 2])
def test_heads_may_share_keys(groups, device, dtype):
    inputs = random_inputs((20, 3), device, dtype, heads=4, groups=groups)
    assert_matches(attention, reference.attention, *inputs)


@pytest.mark.parametrize("shape", [(2, 2, 20, 20), (2, 1, 1, 20), (20, 20), (1, 2, 20, 20)])
def test_biases(shape, device, dtype):
    inputs = random_inputs((20, 7), device, dtype)
    bias = torch.randn(shape, device=device, dtype=dtype)
    assert_matches(attention, reference.attention, *inputs, bias)


@pytest.mark.parametrize("with_bias", [False, True])
def test_softcap_and_scale(with_bias, device, dtype):
    inputs = random_inputs((20, 7), device, dtype)
    bias = torch.randn(20, 20, device=device, dtype=dtype) if with_bias else None
    assert_matches(attention, reference.attention, *inputs, bias, 2.0, 3.0)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_rows_kept_apart(device, dtype):
    """Fully masked blocks of keys come first, in the middle and last."""
    q, k, v, row_ptr, length = random_inputs((200,), device, dtype)
    bias = torch.full((200, 200), -torch.inf, device=device, dtype=dtype)
    bias[:100, 130:140] = 0
    bias[100:, ::150] = 0
    out = attention(q, k, v, row_ptr, length, bias)
    exact = (t.double() for t in (q, k, v))
    assert_close(out, reference.attention(*exact, row_ptr, length, bias.double()), 0, dtype)
    bias[3] = -torch.inf
    lost = attention(q, k, v, row_ptr, length, bias).isnan().flatten(1).all(1)
    assert lost.nonzero().flatten().tolist() == [3]


def test_large_scores_do_not_overflow(device, dtype):
    q, k, v, *where = random_inputs((50,), device, dtype)
    for options in ({}, {"softcap": 30.0}):
        found = attention(1e4 * q, k, v, *where, **options)
        exact = reference.attention(1e4 * q.double(), k.double(), v.double(), *where, **options)
        assert_close(found, exact, 1, dtype)


def test_one_projection_may_hold_all_three(device, dtype):
    """Strided views of one tensor give the same result."""
    row_ptr = pointers((30, 12), device)
    qkv = torch.randn(42, 3, 2, 16, device=device, dtype=dtype)
    found = attention(*qkv.unbind(1), row_ptr, 30)
    expected = reference.attention(*qkv.double().unbind(1), row_ptr, 30)
    assert_close(found, expected, 0, dtype)
    permuted = qkv.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    assert torch.equal(attention(*permuted.unbind(1), row_ptr, 30), found)


@pytest.mark.parametrize("half", [torch.float16, BFLOAT16])
def test_half_precision(half, device):
    inputs = random_inputs((70, 150), device, half, dims=(32, 32))
    found = attention(*inputs)
    assert found.dtype is half
    exact = reference.attention(*(t.double() for t in inputs[:3]), *inputs[3:])
    assert (found - exact).abs().max() < 2 * torch.finfo(half).eps * exact.abs().max()


def test_longest_may_be_overstated(device):
    *inputs, length = random_inputs((20, 7), device)
    assert torch.equal(attention(*inputs, 300), attention(*inputs, length))


def test_nothing_to_do(device):
    q, k, v, row_ptr, _ = random_inputs((0, 0), device)
    assert attention(q, k, v, row_ptr, 0).shape == (0, 2, 16)
    assert attention(q, k, v, row_ptr[:1], 0).shape == (0, 2, 16)


def test_registered_completely(device):
    q, k, v, row_ptr, length = random_inputs((5, 3), device)
    arguments = (q, k, v, None, row_ptr, length, 0.25, None, "ieee")
    torch.library.opcheck(torch.ops.mlff_triton.attention, arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(4, 2)}, r"q has the shape \[4, 2\] instead of \[T, H, D\]"),
        ({"k": torch.ones(5, 2, 16)}, r"k has the shape .* instead of \[4, G, 16\]"),
        ({"v": torch.ones(4, 1, 16)}, r"v has the shape .* instead of \[4, 2, V\]"),
        ({"v": torch.ones(4, 2, 16).double()}, "the same for all"),
        ({"row_ptr": torch.ones(2)}, "row_ptr must be int64 or int32"),
        ({"q": torch.ones(4, 3, 16)}, "3 heads cannot share the keys of 2"),
        ({"softcap": 0.0}, "softcap must be positive and finite, not 0.0"),
        ({"softcap": math.inf}, "softcap must be positive and finite, not inf: use None"),
        ({"bias": torch.ones(3, 4)}, r"bias .* does not broadcast to \[1, 2, 4, 4\]"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    fitting = {name: torch.ones(4, 2, 16) for name in "qkv"} | {"row_ptr": torch.tensor([0, 4])}
    given = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in (fitting | change).items()
    }
    with pytest.raises(InputError, match=message):
        attention(**given, max_length=4)


def test_needs_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q, k, v, row_ptr, length = random_inputs((4,), "cpu")
    with pytest.raises(BackendError, match="Triton kernels need a GPU"):
        attention(q, k, v, row_ptr, length)
