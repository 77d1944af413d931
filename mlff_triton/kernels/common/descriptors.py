"""Descriptors of tensors with any strides, whose blocks are copied on Hopper and later.

Kernels for other GPUs make descriptors of their own, which Triton turns into pointers and masks.
Both read zeros beyond the ends of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mlff_triton.kernels.common import early_launch

_ALIGNMENT = 16  # bytes


@triton.jit
def describe(x, shape, strides, block: tl.constexpr, DESCRIBED: tl.constexpr):
    """Return a descriptor of ``x``, which is already a descriptor if DESCRIBED, else a pointer.

    It is None if ``x`` is. ``strides`` are those of all axes but the last one, whose elements are
    contiguous.
    """
    if DESCRIBED or x is None:
        tensor = x
    else:
        # Triton computes offsets in 64 bits. It does not unpack tuples.
        tensor = tl.make_tensor_descriptor(x, shape, strides + (1,), block)  # noqa: RUF005
    return tensor


def has_descriptors(x: Tensor) -> bool:
    """Return whether the GPU of ``x`` copies blocks by descriptors: Hopper and later."""
    return early_launch.launches_early(x)


def given(x: Tensor, block: Sequence[int], described: bool) -> Any:
    """Return the argument of a kernel for ``x``: its descriptor, or ``x`` without descriptors."""
    return TensorDescriptor(x, x.shape, x.stride(), list(block)) if described else x


def aligned(x: Tensor) -> Tensor:
    """Return a tensor that descriptors can address: the given one, or a copy with padded rows."""
    size = x.element_size()
    steps = [n * size for n in x.stride()[:-1]]
    fits = not any(n % _ALIGNMENT for n in (x.data_ptr(), *steps)) and all(steps)
    if x.stride(-1) == 1 and fits:
        return x
    columns = x.shape[-1]
    padded = triton.cdiv(columns * size, _ALIGNMENT) * _ALIGNMENT // size
    return x.new_empty(*x.shape[:-1], padded)[..., :columns].copy_(x)
