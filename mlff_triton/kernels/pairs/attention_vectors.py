"""Keys and values of attention, and their parts in bfloat16 for products in float32.

For the parts see `mlff_triton.kernels.common.bfloat16_parts`. All programs of a row read the same
keys and values, so these are split before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.bfloat16_parts import split_parts
from mlff_triton.kernels.common.blocks import block_side

TF32_PARTS = 2
"""Parts of products that may have the errors of TF32."""

_ALIGNED = 8  # elements of two bytes, that is 16 bytes
_ELEMENTS = 2048  # per program


@triton.jit
def _split_vectors_kernel(
    x_ptrs,
    out_ptrs,
    n_rows,
    shape,
    x_strides,
    part_stride,
    PARTS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
):
    """Write the parts of tensors x [B, R, H, T, DIM], out [PARTS, B, R, H, T, WIDTH].

    ``x_strides`` has those of the first four axes of each tensor in turn. Grid: (blocks of M of all
    n_rows vectors of a tensor,).
    """
    rows, heads, length = shape
    place, dim = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    token, head = (place % length).to(tl.int64), (place // length % heads).to(tl.int64)
    row = (place // length // heads % rows).to(tl.int64)
    batch = (place // length // heads // rows).to(tl.int64)
    inside = (place < n_rows)[:, None] & (dim < DIM)[None, :]
    for k in tl.static_range(len(x_ptrs)):
        offsets = batch * x_strides[4 * k] + row * x_strides[4 * k + 1]
        offsets += head * x_strides[4 * k + 2] + token * x_strides[4 * k + 3]
        x = tl.load(x_ptrs[k] + offsets[:, None] + dim[None, :], inside, other=0.0)
        parts = split_parts(x, PARTS)
        for part in tl.static_range(PARTS):
            offsets = place.to(tl.int64) * WIDTH + part * part_stride.to(tl.int64)
            tl.store(out_ptrs[k] + offsets[:, None] + dim[None, :], parts[part], inside)


def count_parts(q: Tensor, *, tf32: bool) -> int:
    """Return how many parts in bfloat16 vectors of this dtype are split into; 1 if they are not.

    AMD's matrix cores multiply float32.
    """
    if q.dtype != torch.float32 or torch.version.hip is not None or triton.knobs.runtime.interpret:
        return 1
    return TF32_PARTS if tf32 else 3


def empty_vectors(like: Tensor, parts: int, shape: Sequence[int]) -> Tensor:
    """Return uninitialized parts of vectors [B, R, T, H, D], [parts, B, R, T, H, D].

    The vectors of a head follow each other, in rows that are aligned. If there is one part, it is
    of the dtype of ``like``.
    """
    batches, rows, length, heads, dim = shape
    width = triton.cdiv(dim, _ALIGNED) * _ALIGNED
    dtype = like.dtype if parts == 1 else torch.bfloat16
    found = like.new_empty(parts, batches, rows, heads, length, width, dtype=dtype)
    return found[..., :dim].transpose(3, 4)


def split_vectors(k: Tensor, v: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Return the parts of vectors [B, R, T, H, D], for which see `empty_vectors`.

    All programs of a row read the same parts, so splitting them once takes less time.
    """
    batches, rows, length, heads, dim = k.shape
    split = empty_vectors(k, parts, k.shape), empty_vectors(v, parts, v.shape)
    k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
    n_rows, block = batches * rows * heads * length, block_side(dim)
    vectors = _ELEMENTS // block
    with torch.cuda.device_of(k):
        _split_vectors_kernel[(triton.cdiv(n_rows, vectors),)](
            (k, v),
            split,
            n_rows,
            (rows, heads, length),
            tuple(stride for x in (k, v) for stride in x.transpose(2, 3).stride()[:-1]),
            split[0].stride(0),
            PARTS=parts,
            DIM=dim,
            WIDTH=split[0].stride(3),
            D=block,
            M=vectors,
        )
    return split
