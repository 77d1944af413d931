"""Sums of outer products of coupled rows and hidden values, over the edges of each receiver.

    S_i[c, k]   = sum_e z_e[c] h_e[k]                             h_e[H] = 1, for the bias
    grad z_e[c] = sum_k grad S_i[c, k] h_e[k]
    grad h_e[k] = sum_c grad S_i[c, k] z_e[c]

The weights of edges are linear in hidden values, so a convolution is linear in these sums: see
`mlff_triton.kernels.convolution.mixed_sums`. The sums of all receivers would be large, so callers
take some receivers i at a time, with edges ``row_ptr[i]:row_ptr[i + 1]``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.edge_blocks import zeros
from mlff_triton.kernels.numerics.product import FULL

TILE = 32
"""Hidden values at a time. Sums are padded to a multiple of it."""

_EDGES = 32  # edges at a time
_SUMS_TILE = {"COLUMNS": 64, "num_warps": 4, "num_stages": 2}
_COUPLED_TILE = {"COLUMNS": 64, "num_warps": 4, "num_stages": 3}
_HIDDEN_TILE = {"COLUMNS": 32, "num_warps": 4, "num_stages": 1}


@triton.jit
def add_dot(sums, x, y, PRECISION: tl.constexpr):
    """Return ``sums + x y``, where the sum is rounded to nearest."""
    added = tl.dot(x, y, input_precision=PRECISION, out_dtype=sums.dtype)
    return tl.fma(added, 1.0, sums)


@triton.jit
def _load_hidden(hidden_ptr, edge, live, k, n_hidden, ACC: tl.constexpr):
    """Return hidden values of edges, and 1 after the last one, [M, HIDDEN]."""
    mask = live[:, None] & (k < n_hidden)[None, :]
    hidden = tl.load(hidden_ptr + edge[:, None] * n_hidden + k[None, :], mask, other=0.0)
    return tl.where(live[:, None] & (k == n_hidden)[None, :], 1.0, hidden.to(ACC))


@triton.jit
def _load_coupled(coupled_ptr, edge, live, column, n_coupled):
    """Return columns of coupled rows, [M, COLUMNS]."""
    mask = live[:, None] & (column < n_coupled)[None, :]
    return tl.load(coupled_ptr + edge[:, None] * n_coupled + column[None, :], mask, other=0.0)


@triton.jit
def _load_sums(sums_ptr, node, column, k, n_coupled, n_inner):
    """Return a block of the sums of a receiver, [COLUMNS, HIDDEN]."""
    row = node * n_coupled + column
    return tl.load(
        sums_ptr + row[:, None] * n_inner + k[None, :],
        (column < n_coupled)[:, None],
        other=0.0,
    )


@triton.jit
def _outer_sums_fwd_kernel(
    coupled_ptr,
    hidden_ptr,
    row_ptr_ptr,
    out_ptr,
    n_coupled,
    n_hidden,
    n_blocks,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDDEN: tl.constexpr,
    TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write sums [n_nodes, n_coupled, TILES * HIDDEN]. Grid: (receivers x blocks of COLUMNS,)."""
    node = (tl.program_id(0) // n_blocks).to(tl.int64)
    column = tl.program_id(0) % n_blocks * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.load(row_ptr_ptr + node).to(tl.int64)
    last = tl.load(row_ptr_ptr + node + 1).to(tl.int64)
    sums = zeros(COLUMNS, HIDDEN, TILES, out_ptr.dtype.element_ty)
    for start in range(first, last, M):
        edge = start + tl.arange(0, M)
        live = edge < last
        coupled = tl.trans(_load_coupled(coupled_ptr, edge, live, column, n_coupled))
        added = ()
        for t in tl.static_range(TILES):
            k = t * HIDDEN + tl.arange(0, HIDDEN)
            hidden = _load_hidden(hidden_ptr, edge, live, k, n_hidden, coupled.dtype)
            added += (add_dot(sums[t], coupled, hidden, PRECISION),)  # type: ignore[assignment]
        sums = added

    row = node * n_coupled + column
    inside = (column < n_coupled)[:, None]
    for t in tl.static_range(TILES):
        k = t * HIDDEN + tl.arange(0, HIDDEN)
        tl.store(out_ptr + row[:, None] * (TILES * HIDDEN) + k[None, :], sums[t], inside)


@triton.jit
def _coupled_gradient_kernel(
    sums_ptr,
    hidden_ptr,
    row_ptr_ptr,
    out_ptr,
    n_coupled,
    n_hidden,
    n_blocks,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDDEN: tl.constexpr,
    TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write gradients of coupled rows [n_edges, n_coupled], from those of sums.

    Grid: (receivers x blocks of COLUMNS, splits of the edges).
    """
    node = (tl.program_id(0) // n_blocks).to(tl.int64)
    column = tl.program_id(0) % n_blocks * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.load(row_ptr_ptr + node).to(tl.int64)
    last = tl.load(row_ptr_ptr + node + 1).to(tl.int64)
    for start in range(first + tl.program_id(1) * M, last, tl.num_programs(1) * M):
        edge = start + tl.arange(0, M)
        live = edge < last
        total = tl.zeros((M, COLUMNS), out_ptr.dtype.element_ty)
        for t in range(TILES):
            k = t * HIDDEN + tl.arange(0, HIDDEN)
            sums = _load_sums(sums_ptr, node, column, k, n_coupled, TILES * HIDDEN)
            hidden = _load_hidden(hidden_ptr, edge, live, k, n_hidden, total.dtype)
            total = add_dot(total, hidden, tl.trans(sums), PRECISION)
        mask = live[:, None] & (column < n_coupled)[None, :]
        tl.store(out_ptr + edge[:, None] * n_coupled + column[None, :], total, mask)


@triton.jit
def _hidden_gradient_kernel(
    sums_ptr,
    coupled_ptr,
    row_ptr_ptr,
    out_ptr,
    n_coupled,
    n_hidden,
    n_blocks,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDDEN: tl.constexpr,
    TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write gradients of hidden values [n_edges, n_hidden], from those of sums.

    Grid: (receivers x blocks of HIDDEN, splits of the edges).
    """
    node = (tl.program_id(0) // n_blocks).to(tl.int64)
    k = tl.program_id(0) % n_blocks * HIDDEN + tl.arange(0, HIDDEN)
    first = tl.load(row_ptr_ptr + node).to(tl.int64)
    last = tl.load(row_ptr_ptr + node + 1).to(tl.int64)
    for start in range(first + tl.program_id(1) * M, last, tl.num_programs(1) * M):
        edge = start + tl.arange(0, M)
        live = edge < last
        total = tl.zeros((M, HIDDEN), coupled_ptr.dtype.element_ty)
        for begin in range(0, n_coupled, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)
            sums = _load_sums(sums_ptr, node, column, k, n_coupled, TILES * HIDDEN)
            coupled = _load_coupled(coupled_ptr, edge, live, column, n_coupled)
            total = add_dot(total, coupled, sums, PRECISION)
        mask = live[:, None] & (k < n_hidden)[None, :]
        tl.store(out_ptr + edge[:, None] * n_hidden + k[None, :], total, mask)


def padded_hidden(n_hidden: int) -> int:
    """Return the number of hidden values of sums, with one for the bias, and padding."""
    return triton.cdiv(n_hidden + 1, TILE) * TILE  # type: ignore[no-any-return]


def precision_of_sums(dtype: torch.dtype) -> str:
    """Return the precision of products whose sums have a dtype."""
    splits = dtype == torch.float32 and torch.version.hip is None
    return str(FULL.value) if splits else "ieee"


def _options(sums: Tensor) -> dict[str, object]:
    return {
        "M": _EDGES,
        "HIDDEN": TILE,
        "TILES": sums.shape[2] // TILE,
        "PRECISION": precision_of_sums(sums.dtype),
    }


def splits_of_edges(n_edges: int, n_nodes: int) -> int:
    """Return the number of programs that share the edges of a receiver."""
    return min(65_535, max(1, n_edges // (_EDGES * n_nodes)))


def write_outer_sums(coupled: Tensor, hidden: Tensor, row_ptr: Tensor, out: Tensor) -> None:
    """Write sums [n, C, padded hidden] of some receivers, from the coupled rows of all edges."""
    n_nodes, n_coupled, _ = out.shape
    n_blocks = triton.cdiv(n_coupled, _SUMS_TILE["COLUMNS"])
    with torch.cuda.device_of(out):
        _outer_sums_fwd_kernel[(n_nodes * n_blocks,)](
            coupled,
            hidden,
            row_ptr,
            out,
            n_coupled,
            hidden.shape[1],
            n_blocks,
            **_options(out),
            **_SUMS_TILE,
        )


def write_coupled_gradient(
    sums: Tensor, hidden: Tensor, row_ptr: Tensor, out: Tensor, splits: int
) -> None:
    """Write gradients of coupled rows to ``out`` [E, C], for the edges of some receivers."""
    n_nodes, n_coupled, _ = sums.shape
    n_blocks = triton.cdiv(n_coupled, _COUPLED_TILE["COLUMNS"])
    with torch.cuda.device_of(out):
        _coupled_gradient_kernel[(n_nodes * n_blocks, splits)](
            sums,
            hidden,
            row_ptr,
            out,
            n_coupled,
            hidden.shape[1],
            n_blocks,
            **_options(sums),
            **_COUPLED_TILE,
        )


def write_hidden_gradient(
    sums: Tensor, coupled: Tensor, row_ptr: Tensor, out: Tensor, splits: int
) -> None:
    """Write gradients of hidden values to ``out`` [E, H], for the edges of some receivers."""
    n_nodes, n_coupled, _ = sums.shape
    n_blocks = triton.cdiv(out.shape[1], TILE)
    with torch.cuda.device_of(out):
        _hidden_gradient_kernel[(n_nodes * n_blocks, splits)](
            sums,
            coupled,
            row_ptr,
            out,
            n_coupled,
            out.shape[1],
            n_blocks,
            **_options(sums),
            **_HIDDEN_TILE,
        )
