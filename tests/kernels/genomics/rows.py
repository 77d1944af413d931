"""Rows of sequences for tests, and bounds on errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.token_cases import HALVES

ROUNDING = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
halves = pytest.mark.parametrize("half", HALVES, ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Return random values that are exact in the dtype, in float64."""
    return torch.randn(shape).to(dtype).double()
