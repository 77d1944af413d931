"""Dtypes of the dense operators, which accept half precisions and compute them in float32."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device

COMPUTE_DTYPES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}

_TRITON_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def accumulator(x: Tensor) -> tl.dtype:
    """Return the Triton dtype in which kernels compute with a tensor."""
    return _TRITON_DTYPES[COMPUTE_DTYPES[x.dtype]]


def check_dense(**tensors: Tensor | None) -> None:
    """Raise unless the named tensors share a device that Triton serves, and one floating dtype.

    Raises
    ------
    InputError
        If the tensors are on different devices, or their dtypes differ or are not supported.
    BackendError
        If their device is not a GPU.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    dtypes = {tensor.dtype for tensor in given.values()}
    if len(dtypes) > 1 or not dtypes.issubset(COMPUTE_DTYPES):
        found = ", ".join(f"{name} is {t.dtype}" for name, t in given.items())
        raise InputError(f"{found}: use float16, bfloat16, float32 or float64, the same for all")
    check_device(*given.values())
