"""Products of square matrices (planes) in float32, from products of their halves."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.descriptors import describe, given, has_descriptors
from mlff_triton.kernels.common.hardware import has_large_memory
from mlff_triton.kernels.numerics.product import add_terms, total, untruncated
from mlff_triton.kernels.numerics.rounding import loss_of


@triton.jit
def _load_block(planes, plane, row, inner, M: tl.constexpr, K: tl.constexpr, TURNED: tl.constexpr):
    """Return a block [M, K] of a plane, or of a transposed plane if TURNED."""
    if TURNED:
        block = tl.reshape(planes.load([plane, inner, row]), (K, M)).T
    else:
        block = tl.reshape(planes.load([plane, row, inner]), (M, K))
    return block


@triton.jit
def _plane_products_fwd_kernel(
    a,
    b,
    out,
    planes,
    n,
    DESCRIBED: tl.constexpr,
    TURNED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STAGES: tl.constexpr,
    LOSS: tl.constexpr,
):
    """Write out [planes, n, n], the products of planes of ``a`` and transposed ones of ``b``.

    Both are [2 planes, n, n], the high halves of all planes before the low ones, for which see
    `describe`. If TURNED, the planes of ``a`` are transposed instead. Grid: (planes x blocks of M
    rows x blocks of N columns,), with columns innermost.
    """
    columns, rows = tl.cdiv(n, N), tl.cdiv(n, M)
    program = tl.program_id(0)
    column, row = program % columns * N, program // columns % rows * M
    plane = program // (columns * rows)
    strides = n.to(tl.int64) * n, n
    if TURNED:
        a = describe(a, (2 * planes, n, n), strides, (1, K, M), DESCRIBED)
        b = describe(b, (2 * planes, n, n), strides, (1, K, N), DESCRIBED)
    else:
        a = describe(a, (2 * planes, n, n), strides, (1, M, K), DESCRIBED)
        b = describe(b, (2 * planes, n, n), strides, (1, N, K), DESCRIBED)
    out = describe(out, (planes, n, n), strides, (1, M, N), DESCRIBED)
    sums = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    for inner in tl.range(0, n, K, num_stages=STAGES):
        a_high = _load_block(a, plane, row, inner, M, K, TURNED)
        b_high = _load_block(b, plane, column, inner, N, K, TURNED).T
        a_low = _load_block(a, planes + plane, row, inner, M, K, TURNED)
        b_low = _load_block(b, planes + plane, column, inner, N, K, TURNED).T
        sums = add_terms(sums, (a_high, a_low), (b_high, b_low))
    out.store([plane, row, column], tl.reshape(untruncated(total(sums), K, LOSS), (1, M, N)))


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int

    @classmethod
    def of(cls, planes: Tensor) -> Tile:
        """Return block sizes for the GPU of planes."""
        return cls(128, 128, 64, 8, 3) if has_large_memory(planes) else cls(64, 64, 32, 4, 2)


def plane_products(a: Tensor, b: Tensor, *, turned: bool = False) -> Tensor:
    """Multiply planes of halves of float32 values, without gradients.

    Parameters
    ----------
    a, b : [2, P, N, N]
        High and low halves of planes from `split_weight`, float16 and contiguous, where N is a
        multiple of 8.
    turned : bool
        Return ``a^T b`` instead of ``a b^T``.

    Returns
    -------
    [P, N, N]
        Products, float32.
    """
    _, planes, n, _ = a.shape
    out = torch.empty(planes, n, n, dtype=torch.float32, device=a.device)
    tile, described = Tile.of(a), has_descriptors(a)
    programs = triton.cdiv(n, tile.rows) * triton.cdiv(n, tile.columns) * planes
    blocks = [(1, tile.inner, m) if turned else (1, m, tile.inner) for m in tile[:2]]
    with torch.cuda.device_of(a):
        _plane_products_fwd_kernel[(programs,)](
            given(a.flatten(0, 1), blocks[0], described),
            given(b.flatten(0, 1), blocks[1], described),
            given(out, (1, tile.rows, tile.columns), described),
            planes,
            n,
            DESCRIBED=described,
            TURNED=turned,
            M=tile.rows,
            N=tile.columns,
            K=tile.inner,
            STAGES=tile.stages,
            LOSS=loss_of(a).halves,
            num_warps=tile.warps,
        )
    return out
