"""Rows in the order of components, in which the channels of each component are contiguous.

e3nn stores the components of a channel side by side. Kernels that read the rows of nodes once per
edge take them in the order of `mlff_triton.kernels.convolution.channel_plan.component_order`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import COMPUTE_DTYPES
from mlff_triton.kernels.convolution.channel_plan import component_order
from mlff_triton.kernels.convolution.graphs import by_sender, mean_of, row_sums
from mlff_triton.kernels.convolution.types import Irreps, TensorProduct

_ROWS, _COLUMNS = 4, 256  # per program
_SUMMED_COLUMNS = 128  # of rows that a program sums by sender


@triton.jit
def _component_rows_kernel(
    rows_ptr,
    order_ptr,
    row_ptr_ptr,
    out_ptr,
    n_rows,
    n_columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write ``rows[:, order]`` [n_rows, n_columns], divided by numbers of edges if these are given.

    Grid: (blocks of ROWS, blocks of COLUMNS).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n_columns
    mask = (row < n_rows)[:, None] & inside[None, :]
    source = column
    if order_ptr is not None:
        source = tl.load(order_ptr + column, inside, other=0)
    rows = tl.load(rows_ptr + row[:, None] * n_columns + source[None, :], mask, other=0.0)
    rows = rows.to(out_ptr.dtype.element_ty)
    if row_ptr_ptr is not None:
        first = tl.load(row_ptr_ptr + row, row < n_rows, other=0)
        last = tl.load(row_ptr_ptr + row + 1, row < n_rows, other=0)
        rows = mean_of(rows, (last - first)[:, None])
    tl.store(out_ptr + row[:, None] * n_columns + column[None, :], rows, mask)


def component_rows(
    rows: Tensor, irreps: Irreps, dtype: torch.dtype, row_ptr: Tensor | None = None
) -> Tensor:
    """Return rows [R, columns] in the order of components, in a dtype.

    If the row pointers of receivers are given, each row is divided by the receiver's number of
    edges, as gradients of means require.
    """
    rows = rows.contiguous()
    order = component_order(irreps, rows.device)
    if order is None and row_ptr is None:
        return rows.to(dtype)
    n_rows, n_columns = rows.shape
    out = rows.new_empty(rows.shape, dtype=dtype)
    if out.numel():
        with torch.cuda.device_of(out):
            _component_rows_kernel[(triton.cdiv(n_rows, _ROWS), triton.cdiv(n_columns, _COLUMNS))](
                rows,
                order,
                row_ptr,
                out,
                n_rows,
                n_columns,
                ROWS=_ROWS,
                COLUMNS=_COLUMNS,
                num_warps=4,
            )
    return out


def gradient_rows(grad: Tensor, row_ptr: Tensor, product: TensorProduct, reduce: str) -> Tensor:
    """Return the gradients of sums, in the order of components, from those of sums or means."""
    counts = row_ptr if reduce == "mean" else None
    return component_rows(grad, product.output, COMPUTE_DTYPES[grad.dtype], counts)


def sender_sums(
    rows: Tensor, senders: Tensor, n_nodes: int, irreps: Irreps, dtype: torch.dtype
) -> Tensor:
    """Return sums by sender [S, columns], in e3nn's order, of rows [E, columns] by component."""
    order, pointers = by_sender(senders, n_nodes)
    columns = component_order(irreps, rows.device)
    return row_sums(rows, pointers, dtype, _SUMMED_COLUMNS, order=order, columns=columns)
