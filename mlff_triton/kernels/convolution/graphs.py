"""Graphs of convolutions: checks, receivers of edges, and sums or means of messages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_integers, check_shape
from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.kernels.ops.segment_sum import segment_sum

REDUCTIONS = ("sum", "mean")

_ROWS, _COLUMNS = 8, 64  # messages and columns that a program adds at a time
_GRADIENT_COLUMNS = 256  # per program
_EDGES = 256  # edges or nodes that a program looks up
_LONG = 512
"""Mean number of edges per receiver above which several programs sum the edges of one receiver."""


def check_graph(
    node: Tensor,
    edge_sh: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str,
) -> None:
    """Check that nodes, harmonics and a CSR graph fit a product.

    Raises
    ------
    InputError
        If a shape or dtype is wrong, the tensors are on different devices, there are edges without
        nodes, or ``reduce`` is unknown.
    BackendError
        If their device is not a GPU.
    """
    check_device(node, row_ptr, senders)
    check_integers(row_ptr=row_ptr, senders=senders)
    check_shape("senders", senders, ("E",))
    check_shape("row_ptr", row_ptr, ("N + 1",))
    check_shape("node", node, ("S", product.n_node))
    n_edges, n_receivers = senders.shape[0], row_ptr.shape[0] - 1
    check_shape("edge_sh", edge_sh, (n_edges, product.n_harmonics))
    if n_receivers < 0:
        raise InputError("row_ptr is empty: it needs one more element than there are receivers")
    if n_edges and not (node.shape[0] and n_receivers):
        raise InputError(f"there are {n_edges} edges, but no nodes that they connect")
    if reduce not in REDUCTIONS:
        raise InputError(f"reduce={reduce!r} is unknown: use {' or '.join(map(repr, REDUCTIONS))}")


@triton.jit
def _receivers_kernel(row_ptr_ptr, out_ptr, n_nodes, n_edges, n_steps, M: tl.constexpr):
    """Write the receivers [n_edges] of edges, by bisection. Grid: (blocks of M edges,)."""
    edge = tl.program_id(0) * M + tl.arange(0, M)
    low = tl.zeros((M,), tl.int32)
    high = low + n_nodes
    for _ in range(n_steps):
        middle = low + (high - low) // 2
        is_later = tl.load(row_ptr_ptr + middle) <= edge
        low = tl.where(is_later, middle, low)
        high = tl.where(is_later, high, middle)
    tl.store(out_ptr + edge, low, edge < n_edges)


def receivers_of(row_ptr: Tensor, n_edges: int) -> Tensor:
    """Return the receiver of each edge, int32 [E]."""
    receivers = row_ptr.new_empty(n_edges, dtype=torch.int32)
    n_nodes = len(row_ptr) - 1
    if n_edges:
        with torch.cuda.device_of(row_ptr):
            _receivers_kernel[(triton.cdiv(n_edges, _EDGES),)](
                row_ptr, receivers, n_nodes, n_edges, n_nodes.bit_length(), M=_EDGES
            )
    return receivers


@triton.jit
def _starts_kernel(keys_ptr, out_ptr, n_keys, n_nodes, n_steps, M: tl.constexpr):
    """Write the start of each node's keys [n_nodes + 1], by bisection. Grid: (blocks of M nodes,).

    The keys [n_keys] ascend.
    """
    node = tl.program_id(0) * M + tl.arange(0, M)
    low = tl.zeros((M,), tl.int32)
    high = low + n_keys
    for _ in range(n_steps):
        middle = low + (high - low) // 2
        is_less = tl.load(keys_ptr + middle, middle < n_keys, other=2147483647) < node
        low = tl.where(is_less, middle + 1, low)
        high = tl.where(is_less, high, middle)
    tl.store(out_ptr + node, low, node <= n_nodes)


def by_sender(senders: Tensor, n_nodes: int) -> tuple[Tensor, Tensor]:
    """Return edges sorted by sender, int64 [E], and the start of each sender's, int32 [S + 1]."""
    keys, edges = torch.sort(senders.int(), stable=True)
    starts = keys.new_empty(n_nodes + 1)
    n_keys = keys.shape[0]
    with torch.cuda.device_of(keys):
        _starts_kernel[(triton.cdiv(n_nodes + 1, _EDGES),)](
            keys, starts, n_keys, n_nodes, n_keys.bit_length(), M=_EDGES
        )
    return edges, starts


@triton.jit
def mean_of(sums, count):
    """Return sums divided by a count. A count of 0 is taken as 1."""
    count = tl.maximum(count, 1)
    if sums.dtype == tl.float32:
        mean = tl.div_rn(sums, tl.zeros_like(sums) + count.to(tl.float32))
    else:
        mean = sums / count.to(sums.dtype)
    return mean


@triton.jit
def _row_sums_kernel(
    rows_ptr,
    order_ptr,
    pointers_ptr,
    columns_ptr,
    out_ptr,
    n_columns,
    MEAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write sums or means [N, n_columns] of rows. Grid: (nodes, blocks of COLUMNS).

    Node i sums the rows ``order[pointers[i]:pointers[i + 1]]``, and column c of the sums is written
    to column ``columns[c]``. Without them, ``order`` and ``columns`` are 0, 1, 2, ...
    """
    node = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n_columns
    first = tl.load(pointers_ptr + node).to(tl.int64)
    last = tl.load(pointers_ptr + node + 1).to(tl.int64)

    total = tl.zeros((ROWS, COLUMNS), rows_ptr.dtype.element_ty)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        live = row < last
        if order_ptr is not None:
            row = tl.load(order_ptr + row, live, other=0).to(tl.int64)
        total += tl.load(
            rows_ptr + row[:, None] * n_columns + column[None, :],
            live[:, None] & inside[None, :],
            other=0.0,
        )  # [ROWS, COLUMNS]
    sums = tl.sum(total, 0)
    if MEAN:
        sums = mean_of(sums, last - first)
    if columns_ptr is not None:
        column = tl.load(columns_ptr + column, inside, other=0)
    tl.store(out_ptr + node * n_columns + column, sums.to(out_ptr.dtype.element_ty), inside)


def row_sums(
    rows: Tensor,
    pointers: Tensor,
    dtype: torch.dtype,
    block: int,
    *,
    order: Tensor | None = None,
    columns: Tensor | None = None,
    mean: bool = False,
) -> Tensor:
    """Return sums or means [N, columns] of rows, ``block`` columns per program; see the kernel."""
    n_nodes, n_columns = len(pointers) - 1, rows.shape[1]
    out = rows.new_empty(n_nodes, n_columns, dtype=dtype)
    if out.numel():
        with torch.cuda.device_of(out):
            _row_sums_kernel[(n_nodes, triton.cdiv(n_columns, block))](
                rows,
                order,
                pointers,
                columns,
                out,
                n_columns,
                MEAN=mean,
                ROWS=_ROWS,
                COLUMNS=block,
                num_warps=2,
            )
    return out


def receiver_sums(messages: Tensor, row_ptr: Tensor, reduce: str, dtype: torch.dtype) -> Tensor:
    """Return sums or means [N, columns] of messages [E, columns], rounded to a dtype."""
    if len(messages) > _LONG * (len(row_ptr) - 1):
        return reduced(segment_sum(messages, row_ptr), row_ptr, reduce).to(dtype)
    return row_sums(messages, row_ptr, dtype, _COLUMNS, mean=reduce == "mean")


def reduced(sums: Tensor, row_ptr: Tensor, reduce: str) -> Tensor:
    """Return sums over edges [N, columns] unchanged, or divided by the numbers of edges."""
    return sums / row_ptr.diff().clamp(min=1)[:, None] if reduce == "mean" else sums


@triton.jit
def _receiver_gradients_kernel(
    grad_ptr, row_ptr_ptr, out_ptr, n_columns, MEAN: tl.constexpr, COLUMNS: tl.constexpr
):
    """Write gradients of sums [N, n_columns]. Grid: (receivers, blocks of COLUMNS)."""
    node = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.load(row_ptr_ptr + node + 1) - tl.load(row_ptr_ptr + node)
    inside = column < n_columns
    offsets = node * n_columns + column
    grad = tl.load(grad_ptr + offsets, inside & (count > 0), other=0.0)
    grad = grad.to(out_ptr.dtype.element_ty)
    if MEAN:
        grad = mean_of(grad, count)
    tl.store(out_ptr + offsets, grad, inside)


def receiver_gradients(grad: Tensor, row_ptr: Tensor, reduce: str, dtype: torch.dtype) -> Tensor:
    """Return gradients of sums [N, columns] from those of sums or means, 0 without edges."""
    n_nodes, n_columns = grad.shape
    out = grad.new_empty(n_nodes, n_columns, dtype=dtype)
    if out.numel():
        with torch.cuda.device_of(out):
            _receiver_gradients_kernel[(n_nodes, triton.cdiv(n_columns, _GRADIENT_COLUMNS))](
                grad.contiguous(),
                row_ptr,
                out,
                n_columns,
                MEAN=reduce == "mean",
                COLUMNS=_GRADIENT_COLUMNS,
                num_warps=2,
            )
    return out


def empty_output(node: Tensor, row_ptr: Tensor, product: str) -> Tensor:
    """Return an uninitialized result [N, output columns]."""
    return node.new_empty(len(row_ptr) - 1, TensorProduct.parse(product).n_outputs)


def output_buffer(node: Tensor, n_rows: int, product: TensorProduct, dtype: torch.dtype) -> Tensor:
    """Return a buffer [n_rows, output columns], of zeros if an output has no path to write it."""
    make = node.new_empty if product.reaches_all else node.new_zeros
    return make(n_rows, product.n_outputs, dtype=dtype)
