"""Operators on 3x3 tensors agree with the functions of TorchMD-NET."""

from __future__ import annotations

import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.ops.decomposition import decompose_tensor
from mlff_triton.kernels.ops.irrep_norms import irrep_norms
from mlff_triton.kernels.ops.tensor_product import tensor_product
from mlff_triton.kernels.ops.vector_to_tensor import vector_to_skew, vector_to_symmetric
from mlff_triton.testing import assert_close

N, F = 7, 12


@pytest.fixture(scope="module")
def torchmdnet() -> ModuleType:
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    with warnings.catch_warnings():  # Warp warns at its first import
        warnings.simplefilter("ignore")
        import torchmdnet.models.tensornet
    return torchmdnet.models.tensornet


@pytest.fixture
def t(device) -> Tensor:
    return torch.randn(N, 3, 3, F, dtype=torch.float64, device=device)


@pytest.fixture
def v(device) -> Tensor:
    return torch.randn(N, 3, dtype=torch.float64, device=device)


@pytest.fixture
def factors(device) -> Tensor:
    return torch.randn(N, F, dtype=torch.float64, device=device)


def test_decompose_tensor(torchmdnet, t):
    identity, skew, symmetric = torchmdnet._decompose_tensor(t)
    parts = decompose_tensor(t)
    for part, expected in zip(
        parts, (torchmdnet.I_to_tensor(identity), skew, symmetric), strict=True
    ):
        assert_close(part, expected, order=0)


def test_tensor_norm(torchmdnet, t):
    norms = torch.cat([torchmdnet.tensor_norm(part) for part in decompose_tensor(t)], 1)
    assert_close(irrep_norms(t), norms, order=0)


def test_tensor_product(torchmdnet, t):
    other = t.flip(0)
    for group, product in (
        ("O(3)", torchmdnet._tensor_matmul_o3(t, other)),
        ("SO(3)", 2 * torchmdnet._tensor_matmul_so3(t, other)),
    ):
        expected = product / (torchmdnet.tensor_norm(product) + 1)[:, None, None]
        assert_close(tensor_product(t, other, group=group), expected, order=0)


def test_vector_to_skew(torchmdnet, v, factors):
    expected = torchmdnet.vector_to_skewtensor(v[:, :, None] * factors[:, None])
    assert_close(vector_to_skew(v, factors), expected, order=0)


def test_vector_to_symmetric(torchmdnet, v, factors):
    outer = (v[:, :, None] * v[:, None])[..., None] * factors[:, None, None]
    assert_close(vector_to_symmetric(v, factors), torchmdnet.outer_to_symtensor(outer), order=0)
