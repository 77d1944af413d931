from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.common import irreps
from mlff_triton.kernels.common.checks import check_device, check_floats
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
