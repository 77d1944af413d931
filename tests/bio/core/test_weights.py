"""Conversion of weights that were read in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.bio.core.weights import converted, wide_dtype
from mlff_triton.kernels.genomics.types import Activation


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_float64_is_converted_wherever_it_is(dtype):
    matrix, mask = torch.ones(2, 3).double(), torch.ones(2, 3).bool()
    single = torch.ones(2)
    given = {"a": [matrix.T, (single, None, 1e-5)], "b": (mask.T, Activation(matrix, matrix))}
    found = converted(given, dtype)
    weight, (kept, nothing, eps) = found["a"]
    turned, activation = found["b"]
    assert weight.dtype == dtype
    assert weight.is_contiguous()
    assert kept is single
    assert (nothing, eps) == (None, 1e-5)
    assert turned.dtype == torch.bool
    assert turned.is_contiguous()
    assert type(activation) is Activation
    assert activation.scale.dtype == activation.shift.dtype == wide_dtype(dtype)
