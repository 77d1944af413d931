"""Keys and values of attention, and their halves in float16 for products in float32.

For the halves, see `mlff_triton.kernels.numerics.split`. All programs of a row read the same keys
and values, so these are split beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.numerics.product import split_along

_ALIGNED = 8  # elements of two bytes, that is 16 bytes
_ELEMENTS = 2048  # per program


class Vectors(NamedTuple):
    """Keys or values in the form in which a kernel multiplies by them.

    Attributes
    ----------
    parts : [P, B, R, T, H, D]
        Vectors in half precision, or the high and the low halves of vectors in float32. The vectors
        of a head follow each other in aligned rows.
    unit : float32 [B, R, T, H], optional
        Units of halves, contiguous for each head.
    """

    parts: Tensor
    unit: Tensor | None


@triton.jit
def _split_vectors_kernel(
    x_ptrs,
    out_ptrs,
    unit_ptrs,
    n_rows,
    shape,
    x_strides,
    low_stride,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
):
    """Write the halves of tensors x [B, R, H, T, DIM], out [2, B, R, H, T, WIDTH], and their units.

    ``x_strides`` has the strides of the first four axes of each tensor in turn. Units are
    [B, R, H, T]. Grid: (blocks of M of all n_rows vectors of a tensor,).
    """
    rows, heads, length = shape
    place, dim = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    token, head = (place % length).to(tl.int64), (place // length % heads).to(tl.int64)
    row = (place // length // heads % rows).to(tl.int64)
    batch = (place // length // heads // rows).to(tl.int64)
    inside = (place < n_rows)[:, None] & (dim < DIM)[None, :]
    out_offsets = place.to(tl.int64)[:, None] * WIDTH + dim[None, :]
    for k in tl.static_range(len(x_ptrs)):
        offsets = batch * x_strides[4 * k] + row * x_strides[4 * k + 1]
        offsets += head * x_strides[4 * k + 2] + token * x_strides[4 * k + 3]
        x = tl.load(x_ptrs[k] + offsets[:, None] + dim[None, :], inside, other=0.0)
        high, low, unit = split_along(x, 1)
        tl.store(out_ptrs[k] + out_offsets, high, inside)
        tl.store(out_ptrs[k] + low_stride.to(tl.int64) + out_offsets, low, inside)
        tl.store(unit_ptrs[k] + place[:, None], unit, (place < n_rows)[:, None])


def empty_vectors(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return uninitialized vectors [B, R, T, H, D] of the dtype of ``like``, as rows for kernels.

    The vectors of a head follow each other, in rows that are aligned.
    """
    return _empty(like, 1, shape, like.dtype)[0]


def empty_operands(like: Tensor, shape: Sequence[int]) -> Vectors:
    """Return uninitialized operands for vectors [B, R, T, H, D]: halves if they are float32."""
    if like.dtype != torch.float32:
        return Vectors(_empty(like, 1, shape, like.dtype), None)
    batches, rows, length, heads, _ = shape
    unit = like.new_empty(batches, rows, heads, length).transpose(2, 3)
    return Vectors(_empty(like, 2, shape, torch.float16), unit)


def _empty(like: Tensor, parts: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    batches, rows, length, heads, dim = shape
    width = triton.cdiv(dim, _ALIGNED) * _ALIGNED
    found = like.new_empty(parts, batches, rows, heads, length, width, dtype=dtype)
    return found[..., :dim].transpose(3, 4)


def operands(k: Tensor, v: Tensor) -> tuple[Vectors, Vectors]:
    """Return keys and values [B, R, T, H, D] as operands: their halves if they are float32."""
    if k.dtype != torch.float32:
        return Vectors(k[None], None), Vectors(v[None], None)
    batches, rows, length, heads, dim = k.shape
    found = empty_operands(k, k.shape), empty_operands(v, v.shape)
    k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
    n_rows, block = batches * rows * heads * length, block_side(dim)
    vectors, parts = _ELEMENTS // block, found[0].parts
    with torch.cuda.device_of(k):
        _split_vectors_kernel[(triton.cdiv(n_rows, vectors),)](
            (k, v),
            tuple(each.parts for each in found),
            tuple(each.unit for each in found),
            n_rows,
            (rows, heads, length),
            tuple(stride for x in (k, v) for stride in x.transpose(2, 3).stride()[:-1]),
            parts.stride(0),
            DIM=dim,
            WIDTH=parts.stride(3),
            D=block,
            M=vectors,
        )
    return found
