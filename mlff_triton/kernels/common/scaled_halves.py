"""Float32 values as sums of two float16 halves in a unit per row or column, for tensor cores.

    x = (high + low) unit      x y = (high high + low high + high low) unit unit

The product of both low halves is below the precision of float32 and left out. The unit is the power
of two in which the largest value is 2^14 to 2^15. So values of any size keep the precision that
they have in float32, relative to the largest one of their row, and gradients may be small.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_EXPONENT = tl.constexpr(0x7F800000)  # bits of the exponent
_SMALLEST = tl.constexpr(1 << 23)  # of these bits
_LARGEST = tl.constexpr(254 << 23)
_14 = tl.constexpr(14 << 23)


@triton.jit
def split_below(x, largest):
    """Return high and low halves and the unit of a block, given the largest absolute values."""
    exponent = largest.to(tl.int32, bitcast=True) & _EXPONENT
    unit = tl.maximum(exponent - _14, _SMALLEST).to(tl.float32, bitcast=True)
    high, low = split_scaled(x * inverse(unit))
    return high, low, unit


@triton.jit
def split_scaled(x):
    """Return high and low halves of values in their unit."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def split_along(x, AXIS: tl.constexpr):
    """Return high halves, low halves and units of a block, with one unit for all along an axis.

    The axis of the units has the size 1. Rows with values that are not finite become NaN.
    """
    return split_below(x, tl.max(tl.abs(x), AXIS, keep_dims=True))


@triton.jit
def inverse(unit):
    """Return the inverse of units, which are powers of two."""
    return (-unit.to(tl.int32, bitcast=True) + _LARGEST).to(tl.float32, bitcast=True)


@triton.jit
def multiply_halves(x_high, x_low, y_high, y_low):
    """Return the product of two blocks in their units, with the smallest terms first."""
    product = tl.dot(x_low, y_high)
    product = tl.dot(x_high, y_low, product)
    return tl.dot(x_high, y_high, product)


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
    columns = min(triton.next_power_of_2(n_columns), max(1, 4096 // rows))
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
