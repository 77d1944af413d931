"""The addition to rows in float32, and its rounding."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.genomics.attention_residual import attention_residual
from tests.kernels.genomics.rows import halves, random


@halves
@pytest.mark.parametrize("shape", [(1, 1), (7, 300)], ids=str)
def test_residual(shape, half, device):
    x, change = torch.randn(shape), random(*shape, dtype=half).to(half)
    rows = x.clone().to(device)
    found = attention_residual(rows, change.to(device))
    assert torch.equal(rows.cpu(), x + change.float())
    assert torch.equal(found.cpu(), (x + change.float()).to(half))
