"""Dtypes of the dense operators, which accept half precisions and compute them in float32."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
    """Check that the named tensors share a device that Triton serves, and one floating dtype.

    Raises
    ------
    InputError
        If the tensors are on different devices, or their dtypes differ or are not supported.
    BackendError
        If their device is not a GPU.
    """
    check_same(COMPUTE_DTYPES, tensors)


def check_same(supported: Collection[torch.dtype], tensors: Mapping[str, Tensor | None]) -> None:
    """Check tensors as `check_dense` does, for an operator that supports only some dtypes."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    dtypes = {tensor.dtype for tensor in given.values()}
    if len(dtypes) > 1 or not dtypes.issubset(supported):
        found = ", ".join(f"{name} is {t.dtype}" for name, t in given.items())
        *names, last = (str(dtype).removeprefix("torch.") for dtype in supported)
        raise InputError(f"{found}: use {', '.join(names)} or {last}, the same for all")
    check_device(*given.values())
