"""3x3 tensors as nine components, against their 3x3 form."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.model.irreps import compose, decompose, irrep_norms, matmul, scale
from mlff_triton.testing import (
    assert_close,
)


def random_tensors() -> Tensor:
    return torch.randn(3, 3, 5, 4, dtype=torch.float64)


def test_compose_is_trace_skew_and_symmetric_part():
    x = torch.randn(9, 5, 4, dtype=torch.float64)
    t = compose(x)
    v = torch.randn(5, 4, 3, dtype=torch.float64)
    skew, symmetric = (t - t.transpose(0, 1)) / 2, (t + t.transpose(0, 1)) / 2
    cross = torch.linalg.cross(x[1:4].movedim(0, -1), v)
    assert_close(torch.einsum("abnf,nfb->nfa", skew, v), cross, 0)
    assert_close(torch.einsum("aanf->nf", t), 3 * x[0], 0)
    traceless = symmetric - torch.eye(3, dtype=t.dtype)[:, :, None, None] * x[0]
    rows, columns = (0, 0, 0, 1, 1), (0, 1, 2, 1, 2)
    assert_close(traceless[rows, columns], x[4:9], 0)


def test_decompose_undoes_compose():
    x, t = torch.randn(9, 5, 4, dtype=torch.float64), random_tensors()
    assert_close(decompose(compose(x)), x, 0)
    assert_close(compose(decompose(t)), t, 0)


def test_norms_are_those_of_the_parts_and_add_up():
    x = torch.randn(9, 5, 4, dtype=torch.float64)
    norms = irrep_norms(x)
    for part, (start, stop) in enumerate(((0, 1), (1, 4), (4, 9))):
        only = torch.zeros_like(x)
        only[start:stop] = x[start:stop]
        assert_close(norms[part], compose(only).square().sum((0, 1)), 0)
    assert_close(norms.sum(0), compose(x).square().sum((0, 1)), 0)


def test_matmul_is_the_matrix_product():
    a, b = random_tensors(), random_tensors()
    assert_close(matmul(a, b), torch.einsum("abnf,bcnf->acnf", a, b), 0)


def test_scale_multiplies_each_part():
    x, factors = torch.randn(9, 5, 4), torch.randn(5, 3, 4)
    scaled = scale(x, factors)
    for row, part in enumerate((0, 1, 1, 1, 2, 2, 2, 2, 2)):
        assert torch.equal(scaled[row], x[row] * factors[:, part])
