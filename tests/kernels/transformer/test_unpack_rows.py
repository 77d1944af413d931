from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES
from mlff_triton.kernels.transformer.reference import unpack_rows as reference
from mlff_triton.kernels.transformer.unpack_rows import unpack_rows
from tests.support.token_cases import assert_near, moved, random_mask


@pytest.mark.parametrize("parts", [(), ("shift",), ("norm",), ("shift", "norm")], ids=str)
def test_unpacking(parts, device, dtype):
    assert_unpacks(device, dtype, (3, 17), 33, parts)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17)], ids=str)
@pytest.mark.parametrize("channels", [1, 8, 3000])
def test_unpacking_shapes(shape, channels, device):
    assert_unpacks(device, torch.float32, shape, channels, ("shift", "norm"))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("out", [None, torch.float16, torch.float32, torch.float64])
def test_unpacking_to_another_dtype(half, out, device):
    assert_unpacks(device, half, (3, 17), 33, ("shift", "norm"), out)


def assert_unpacks(
    device: str,
    dtype: torch.dtype,
    shape: tuple[int, int],
    channels: int,
    parts: tuple[str, ...],
    out: torch.dtype | None = None,
) -> None:
    kept = random_mask(*shape).flatten()
    row_of = torch.where(kept, kept.cumsum(0) - 1, -1).int()
    x, vectors = torch.randn(len(kept), channels) + 3, torch.randn(3, channels).to(dtype)
    given = {"shift": vectors[0], "norm": (vectors[1], vectors[2], 1e-5)}
    options = {name: given[name] for name in parts}
    x = x.to(dtype)
    exact = reference.unpack_rows(x.double(), row_of, shape, **moved(options, torch.float64))
    x[kept.sum() :] = torch.nan
    found = unpack_rows(x.to(device), row_of.to(device), shape, **moved(options, device), dtype=out)
    assert found.dtype is (out or dtype)
    assert found.shape == (*shape, channels)
    coarser = max(COMPUTE_DTYPES[dtype], found.dtype, key=lambda d: torch.finfo(d).eps)
    assert_near(found, exact, coarser)


def test_a_shift_may_be_more_exact(device):
    x, shift = torch.randn(2, 33).half().to(device), torch.randn(33, device=device)
    row_of = torch.tensor([1, -1, 0], device=device)
    found = unpack_rows(x, row_of, (1, 3), shift=shift, dtype=torch.float32)
    zero = torch.zeros_like(shift)
    assert torch.equal(found[0], torch.stack([x[1] + shift, zero, x[0] + shift]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(3)}, r"x has the shape \[3\] instead of \[\*, C\]"),
        ({"row_of": torch.ones(7).int()}, r"row_of has the shape \[7\] instead of \[8\]"),
        ({"row_of": torch.ones(8)}, "row_of is torch.float32"),
        ({"shift": torch.ones(4)}, r"shift has the shape \[4\] instead of \[5\]"),
        ({"shift": torch.ones(5).long()}, "shift is torch.int64"),
        ({"norm": (torch.ones(4), None, 0.1)}, r"weight .* instead of \[5\]"),
        ({"dtype": torch.int32}, "dtype is torch.int32"),
    ],
)
def test_refuses_to_unpack_what_does_not_fit(change, message, device):
    fitting = {"x": torch.ones(3, 5), "row_of": torch.zeros(8).int(), "shape": (2, 4)}
    with pytest.raises(InputError, match=message):
        unpack_rows(**moved(fitting | change, device))


def test_needs_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="Triton kernels need a GPU"):
        unpack_rows(torch.ones(3, 5), torch.zeros(8).int(), (2, 4))


def test_derivatives_of_the_reference():
    row_of = torch.tensor([1, -1, -1, 0])
    x, shift, weight, bias = torch.randn(4, 2, 3, dtype=torch.float64)
    inputs = tuple(t.requires_grad_() for t in (x, shift[0], weight[0], bias[0]))

    def unpack(x, shift, weight, bias):
        norm = (weight, bias, 0.1)
        return reference.unpack_rows(x, row_of, (2, 2), shift=shift, norm=norm)

    assert torch.autograd.gradcheck(unpack, inputs)
