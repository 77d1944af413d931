"""Weights that are split on the GPU, in each call."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.numerics.product import split, split_along

_BLOCK = 1024
_FEWEST_CHANNELS = 64
_ELEMENTS = 4096  # per program that splits columns


@triton.jit
def _split_columns_kernel(
    x_ptr,
    halves_ptr,
    units_ptr,
    n_rows,
    n_columns,
    matrix_stride,
    row_stride,
    column_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write halves [2, n_rows, n_columns] of x and units [n_columns], both for each matrix.

    Grid: (column blocks, matrices).
    """
    matrix = tl.program_id(1)
    x_ptr += matrix * matrix_stride
    halves_ptr += matrix * 2 * n_rows * n_columns
    units_ptr += matrix * n_columns
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < n_rows) & (column < n_columns)

    x = tl.load(x_ptr + row * row_stride + column * column_stride, mask, other=0.0)
    high, low, unit = split_along(x, 0)

    halves_ptr += row * n_columns + column
    tl.store(halves_ptr, high, mask)
    tl.store(halves_ptr + n_rows * n_columns, low, mask)
    tl.store(units_ptr + column, unit, column < n_columns)


def split_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split matrices, with a unit per column.

    Parameters
    ----------
    x : [B, K, N]
        Matrices of the size of weights, float32, with any strides.

    Returns
    -------
    float16 [B, 2, K, N], float32 [B, N]
        High and low halves, and units.
    """
    n_matrices, n_rows, n_columns = x.shape
    halves = torch.empty(n_matrices, 2, n_rows, n_columns, dtype=torch.float16, device=x.device)
    units = x.new_empty(n_matrices, n_columns)
    rows: int = triton.next_power_of_2(n_rows)
    columns = min(triton.next_power_of_2(n_columns), max(1, _ELEMENTS // rows))
    with torch.cuda.device_of(x):
        _split_columns_kernel[(triton.cdiv(n_columns, columns), n_matrices)](
            x,
            halves,
            units,
            n_rows,
            n_columns,
            *x.stride(),
            ROWS=rows,
            COLUMNS=columns,
            num_warps=4,
        )
    return halves, units


@triton.jit
def _weight_halves_kernel(weight_ptrs, halves_ptrs, sizes, BLOCK: tl.constexpr):
    """Write the high halves of each weight, and the low ones after them.

    Reads weights [sizes[k]] and writes halves [2, sizes[k]]. Grid: (blocks of the largest weight,).
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for k in tl.static_range(len(weight_ptrs)):
        inside = place < sizes[k]
        high, low = split(tl.load(weight_ptrs[k] + place, inside, other=0.0), "shifted_halves")
        tl.store(halves_ptrs[k] + place, high, inside)
        tl.store(halves_ptrs[k] + sizes[k] + place, low, inside)


def takes_halves(weight: Tensor) -> bool:
    """Return True if products with a weight [..., C] are those of halves.

    Halves lack one bit of float32. This shows in sums of few products, which take three parts in
    bfloat16 instead: see `mlff_triton.kernels.numerics.product.FULL`.
    """
    return weight.dtype == torch.float32 and weight.shape[-1] >= _FEWEST_CHANNELS


def weight_operands(*weights: Tensor, halves: bool) -> list[Tensor]:
    """Return weights as kernels read them, contiguous, or their halves, [2, ...] in float16."""
    contiguous = [weight.contiguous() for weight in weights]
    if not halves:
        return contiguous
    parts = [w.new_empty(2, *w.shape, dtype=torch.float16) for w in contiguous]
    sizes = tuple(w.numel() for w in contiguous)
    with torch.cuda.device_of(weights[0]):
        _weight_halves_kernel[(triton.cdiv(max(sizes), _BLOCK),)](
            tuple(contiguous), tuple(parts), sizes, BLOCK=_BLOCK
        )
    return parts
