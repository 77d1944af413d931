from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.common import irreps
from mlff_triton.kernels.common.checks import check_device, check_floats
from mlff_triton.kernels.common.operators import by_reference, operator
from mlff_triton.kernels.ops.irrep_norms import irrep_norms
from mlff_triton.testing.launches import recorded_launches


def test_without_a_gpu_the_torch_backend_is_named(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match=r"need a GPU, .* is cpu; .* use backend='torch'"):
        irrep_norms(torch.zeros(9, 2, 4))


def test_tensors_lie_on_one_device(device):
    with pytest.raises(InputError, match=r"on different devices, .*meta: move them to one device"):
        check_device(torch.zeros(1, device=device), torch.zeros(1, device="meta"))


def test_one_dtype_for_all(device):
    ones = torch.ones(1, device=device)
    check_floats(a=ones, b=ones)
    with pytest.raises(InputError, match=r"a is torch.float32, b is torch.float64: use float32 or"):
        check_floats(a=ones, b=ones.double())


def test_kernels_count_elements_in_32_bits():
    with pytest.raises(InputError, match=r"more than .* atoms times channels: split it"):
        irreps.has_full_layout("x", torch.zeros((), device="meta").expand(9, 2**24, 128))


def test_launches_are_not_recorded_under_the_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(BackendError, match="TRITON_INTERPRET"), recorded_launches():
        pass


def reference(a: Tensor, index: Tensor, b: Tensor, power: int) -> tuple[Tensor, Tensor]:
    return a[index] ** power * b, a.sin() * b.sum()


@operator("backward_of_tests", outputs=("a", "b"), differentiate=by_reference(reference, outputs=2))
def backward(
    grad0: Tensor, grad1: Tensor, a: Tensor, index: Tensor, b: Tensor, power: int
) -> tuple[Tensor, Tensor]:
    _, pull_back = torch.func.vjp(lambda a, b: reference(a, index, b, power), a, b)
    return tuple(gradient.clone() for gradient in pull_back((grad0, grad1)))


def test_second_derivatives_by_reference():
    index = torch.tensor([0, 2, 2, 1])
    sizes = 4, 3, 3, 4
    grad0, grad1, a, b = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in sizes)

    def gradients(grad0: Tensor, grad1: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return backward(grad0, grad1, a, index, b, 3)

    assert torch.autograd.gradcheck(gradients, (grad0, grad1, a, b))
    assert torch.autograd.gradgradcheck(gradients, (grad0, grad1, a, b))
