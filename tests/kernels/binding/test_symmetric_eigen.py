"""Eigenvectors of symmetric 3x3 matrices, compared with LAPACK in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.binding.reference import symmetric_eigen as reference
from mlff_triton.kernels.binding.symmetric_eigen import symmetric_eigen

ERRORS = {torch.float32: 3e-7, torch.float64: 1e-14}


def _rotations(count: int) -> Tensor:
    return torch.linalg.qr(torch.randn(count, 3, 3).double())[0]


def _with_eigenvalues(values: Tensor) -> Tensor:
    axes = _rotations(len(values))
    return axes @ torch.diag_embed(values.double()) @ axes.mT


def _cases() -> dict[str, Tensor]:
    torch.manual_seed(3)
    random = torch.randn(100, 3, 3).double()
    return {
        "random": random + random.mT,
        "diagonal": torch.diag_embed(torch.randn(20, 3).double()),
        "twofold": _with_eigenvalues(torch.tensor([[2.0, 2.0, 5.0], [-1.0, 3.0, 3.0]])),
        "threefold": 3.0 * torch.eye(3).double()[None],
        "nearly twofold": _with_eigenvalues(1 + 1e-9 * torch.randn(20, 3).double()),
        "singular": _with_eigenvalues(torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 3.0]])),
        "zero": torch.zeros(1, 3, 3).double(),
        "large": 1e30 * (random + random.mT),
        "small": 1e-30 * (random + random.mT),
        "graded": _with_eigenvalues(torch.tensor([[1e-12, 1e-4, 1.0]])),
    }


@pytest.mark.parametrize("case", _cases())
def test_eigenvalues_and_vectors(case, dtype, device):
    matrices = _cases()[case].to(device, dtype)
    values, vectors = symmetric_eigen(matrices)
    exact = matrices.double()
    expected, _ = reference.symmetric_eigen(exact)
    size = expected.abs().amax(1, keepdim=True)
    error = ERRORS[dtype]
    assert values.dtype == vectors.dtype == dtype
    assert ((values.double() - expected).abs() <= error * size).all()
    assert (values.diff(dim=1) >= 0).all()
    products = vectors.double().mT @ vectors.double()
    assert ((products - torch.eye(3, device=device)).abs() <= 2 * error).all()
    residual = exact @ vectors.double() - vectors.double() * values.double()[:, None]
    assert (residual.abs() <= 4 * error * size[..., None]).all()


@pytest.mark.parametrize("shape", [(1,), (63,), (2, 65), (0,)])
def test_shapes(shape, device):
    random = torch.randn(*shape, 3, 3, device=device)
    matrices = (random + random.mT).mT  # not contiguous
    values, vectors = symmetric_eigen(matrices)
    restored = vectors @ (values[..., None] * vectors.mT)
    torch.testing.assert_close(restored, matrices, rtol=0, atol=1e-5)


def test_vectors_belong_to_their_values(device):
    matrices = _with_eigenvalues(torch.tensor([[1.0, 2.0, 4.0]]).expand(50, 3)).to(device)
    _, expected = reference.symmetric_eigen(matrices)
    _, vectors = symmetric_eigen(matrices)
    overlaps = (vectors * expected).sum(1).abs()
    torch.testing.assert_close(overlaps, torch.ones_like(overlaps), rtol=0, atol=1e-13)


def test_wrong_arguments_are_refused(device):
    with pytest.raises(InputError, match="instead of"):
        symmetric_eigen(torch.ones(2, 3, 4, device=device))
    with pytest.raises(InputError, match="float32 or float64"):
        symmetric_eigen(torch.ones(2, 3, 3, device=device).half())
