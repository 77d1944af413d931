"""Irreps whose rotations are computed without e3nn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.convolution.clebsch_gordan import wigner_3j
from mlff_triton.kernels.convolution.types import Irreps

Transform = Callable[[Irreps], Tensor]


@pytest.fixture(params=["rotation", "inversion", "reflection"])
def transform(request: pytest.FixtureRequest) -> Transform:
    """Return a function for the matrix that transforms columns of rows with given irreps."""
    inverts = request.param != "rotation"
    rotation = torch.eye(3, dtype=torch.float64)
    if request.param != "inversion":
        rng = torch.Generator().manual_seed(7)
        rotation = torch.linalg.qr(torch.randn(3, 3, generator=rng, dtype=torch.float64))[0]
        rotation = rotation * torch.linalg.det(rotation)
    wigner = [torch.ones(1, 1, dtype=torch.float64), rotation]
    for degree in (2, 3):
        c = wigner_3j(1, degree - 1, degree)
        both = torch.einsum("abk,ac,bd,cdl->kl", c, rotation, wigner[-1], c)
        wigner.append(both * (2 * degree + 1))

    def matrix(irreps: Irreps) -> Tensor:
        blocks = []
        for irrep in irreps:
            sign = irrep.parity if inverts else 1
            blocks += [sign * wigner[irrep.degree]] * irrep.count
        return torch.block_diag(*blocks)

    return matrix
