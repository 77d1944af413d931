"""Layer of a network on edges, whose inputs are features of edges and rows of their nodes.

    y_e = activation([f_e, x_i, x_j] W + b) = activation(f_e W_f + b + (x W_i)_i + (x W_j)_j)

for an edge ``e`` with features f, and the rows x of nodes ``i`` and ``j``. M. Geiger, T. Smidt,
"e3nn: Euclidean neural networks", https://arxiv.org/abs/2207.09453, section 5. Terms of nodes are
computed once per node, and added to the products of edges. Joined inputs are not stored.

Products in float32 keep its full precision: see `mlff_triton.kernels.numerics.product.FULL`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.checks import check_device, check_integers, check_shape
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES, accumulator, check_dense
from mlff_triton.kernels.common.operators import operator
from mlff_triton.kernels.common.reference.activations import ACTIVATIONS
from mlff_triton.kernels.numerics.product import FULL


class _Tile(NamedTuple):
    """Sizes of the blocks of a program: rows, columns and inner values of a product."""

    rows: int
    columns: int
    inner: int

    def programs(self, n_rows: int, n_out: int) -> int:
        """Return the number of programs for a product [n_rows, n_out]."""
        return -(-n_rows // self.rows) * -(-n_out // self.columns)


_TILE, _WARPS = _Tile(64, 32, 16), 4
"""Fastest of many tiles on an H200: values in three parts take many registers."""


@triton.jit
def _block_of(program, n_out, M: tl.constexpr, N: tl.constexpr):
    """Return the M rows and N columns of a program. Programs of the same rows are consecutive."""
    n_blocks = tl.cdiv(n_out, N)
    row = (program // n_blocks).to(tl.int64) * M + tl.arange(0, M)
    return row, (program % n_blocks) * N + tl.arange(0, N)


@triton.jit
def _product(
    x_ptr,
    weight_ptr,
    row,
    column,
    n_rows,
    n_in,
    n_out,
    x_row,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    K: tl.constexpr,
):
    """Return a block of the product of x [n_rows, n_in] and a weight [n_in, n_out].

    Rows of x are ``x_row`` elements apart.
    """
    sums = tl.zeros((row.shape[0], column.shape[0]), ACC)
    for start in range(0, n_in, K):
        k = start + tl.arange(0, K)
        x = tl.load(
            x_ptr + row[:, None] * x_row + k[None, :],
            (row < n_rows)[:, None] & (k < n_in)[None, :],
            other=0.0,
        )  # [M, K]
        weight = tl.load(
            weight_ptr + k[:, None] * n_out + column[None, :],
            (k < n_in)[:, None] & (column < n_out)[None, :],
            other=0.0,
        )  # [K, N]
        sums = tl.dot(x, weight, sums, input_precision=PRECISION, out_dtype=ACC)
    return sums


@triton.jit
def _node_terms_kernel(
    node_ptrs,
    weight_ptrs,
    term_ptrs,
    odd_nodes,
    n_in,
    odd_rows,
    n_out,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write the terms [n_nodes, n_out] of each table of nodes.

    The number of nodes and the row stride are passed as odd numbers, 2 n + 1: otherwise, Triton
    would compile a kernel for each combination of numbers divisible by 16. Grid: (blocks [M, N] of
    the largest table, tables).
    """
    row, column = _block_of(tl.program_id(0), n_out, M, N)
    for k in tl.static_range(len(node_ptrs)):
        if tl.program_id(1) == k:
            n_nodes = odd_nodes[k] // 2
            terms = _product(
                node_ptrs[k],
                weight_ptrs[k],
                row,
                column,
                n_nodes,
                n_in[k],
                n_out,
                odd_rows[k] // 2,
                PRECISION,
                ACC,
                K,
            )
            mask = (row < n_nodes)[:, None] & (column < n_out)[None, :]
            tl.store(term_ptrs[k] + row[:, None] * n_out + column[None, :], terms, mask)


@triton.jit(do_not_specialize=["n_edges"])
def _edge_network_fwd_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    term_ptrs,
    index_ptrs,
    out_ptr,
    n_edges,
    n_in,
    n_out,
    x_row,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write hidden values [n_edges, n_out] from features x [n_edges, n_in].

    Terms of nodes [nodes, n_out] are gathered by index [n_edges] before the product to which they
    are added. Grid: (blocks [M, N],), on the first axis, as the others hold at most 65,535
    programs.
    """
    row, column = _block_of(tl.program_id(0), n_out, M, N)
    live, inside = row < n_edges, (column < n_out)[None, :]
    mask = live[:, None] & inside

    added = tl.load(bias_ptr + column[None, :], inside, other=0.0).to(ACC)
    for k in tl.static_range(len(term_ptrs)):
        node = tl.load(index_ptrs[k] + row, live, other=0).to(tl.int64)
        terms = term_ptrs[k] + node[:, None] * n_out + column[None, :]
        added += tl.load(terms, mask, other=0.0)  # [M, N]
    sums = _product(x_ptr, weight_ptr, row, column, n_edges, n_in, n_out, x_row, PRECISION, ACC, K)

    y = activate(sums + added, ACTIVATION)
    pointers = out_ptr + row[:, None] * n_out + column[None, :]
    tl.store(pointers, y.to(out_ptr.dtype.element_ty), mask)


def _options(x: Tensor, tile: _Tile) -> dict[str, Any]:
    """Return the compile-time constants and launch options of both kernels."""
    precision = FULL.value if x.dtype == torch.float32 else "ieee"
    sizes = {"M": tile.rows, "N": tile.columns, "K": tile.inner}
    return {"PRECISION": precision, "ACC": accumulator(x), "num_warps": _WARPS, **sizes}


def _node_terms(nodes: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return products of tables of nodes and their weights, in the dtype of sums."""
    if not nodes:
        return ()
    n_out, dtype = weights[0].shape[1], COMPUTE_DTYPES[nodes[0].dtype]
    terms = tuple(x.new_empty(len(x), n_out, dtype=dtype) for x in nodes)
    rows = tuple(map(_rows, nodes))
    _node_terms_kernel[(_TILE.programs(max(map(len, nodes)), n_out), len(nodes))](
        rows,
        tuple(weights),
        terms,
        tuple(2 * len(x) + 1 for x in rows),
        tuple(x.shape[1] for x in rows),
        tuple(2 * x.stride(0) + 1 for x in rows),
        n_out,
        **_options(nodes[0], _TILE),
    )
    return terms


def _rows(x: Tensor) -> Tensor:
    """Return rows whose columns are consecutive in memory."""
    return x if x.stride(1) == 1 else x.contiguous()


def _empty_hidden(features: Tensor, *others: Any) -> Tensor:
    """Return uninitialized hidden values [E, H]."""
    return features.new_empty(len(features), others[2].shape[1])


@operator("edge_network", outputs=_empty_hidden)
def _edge_network(
    features: Tensor,
    nodes: Sequence[Tensor],
    index: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    activation: str,
) -> Tensor:
    """Return the hidden values [E, H] of the layer."""
    out = _empty_hidden(features, nodes, index, weight)
    if not out.numel():
        return out
    x, (n_edges, n_out) = _rows(features), out.shape
    own, *others = weight.contiguous().split([part.shape[1] for part in (features, *nodes)])
    with torch.cuda.device_of(out):
        terms = _node_terms(nodes, others)
        _edge_network_fwd_kernel[(_TILE.programs(n_edges, n_out),)](
            x,
            own,
            bias.contiguous(),
            terms,
            tuple(i.contiguous() for i in index),
            out,
            n_edges,
            x.shape[1],
            n_out,
            x.stride(0),
            ACTIVATION=activation,
            **_options(x, _TILE),
        )
    return out


def edge_network(
    features: Tensor,
    ends: Sequence[tuple[Tensor, Tensor]],
    weight: Tensor,
    bias: Tensor,
    activation: str = "relu",
) -> Tensor:
    """Apply a linear map to the features of edges and the rows of their nodes, and an activation.

    The result equals ``activation(cat([features, node[index], ...], 1) @ weight + bias)`` for each
    ``node, index`` of ``ends``. It has no derivatives: a backward pass raises an error.

    Parameters
    ----------
    features : [E, C]
        Features of edges; float16, bfloat16, float32 or float64. Half precisions are summed in
        float32.
    ends : sequence of ([N, C_k], int64 or int32 [E])
        Rows of nodes, and the index of a node for each edge, such as its receiver or its sender.
        Rows may be column slices of wider rows. The values of indices are not checked.
    weight, bias : [C + C_1 + ..., H], [H]
        Linear map. Rows of the weight are in the order of features and ends.
    activation : str
        Activation, by a name that `mlff_triton.kernels.ops.linear.linear` knows, or "none".

    Returns
    -------
    [E, H]
        Hidden values of edges.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or the activation is unknown.
    BackendError
        If the tensors are not on a GPU.

    References
    ----------
    https://arxiv.org/abs/2207.09453, section 5.

    Examples
    --------
    >>> features, node = torch.ones(3, 4).cuda(), torch.ones(2, 5).cuda()
    >>> receivers, senders = torch.tensor([0, 0, 1]).cuda(), torch.tensor([0, 1, 0]).cuda()
    >>> weight, bias = torch.ones(14, 8).cuda(), torch.zeros(8).cuda()
    >>> edge_network(features, [(node, receivers), (node, senders)], weight, bias).shape
    torch.Size([3, 8])
    """
    _check(features, ends, weight, bias, activation)
    nodes, index = [node for node, _ in ends], [i for _, i in ends]
    found: Tensor = _edge_network(features, nodes, index, weight, bias, activation)
    return found


def _check(
    features: Tensor,
    ends: Sequence[tuple[Tensor, Tensor]],
    weight: Tensor,
    bias: Tensor,
    activation: str,
) -> None:
    nodes = {f"node {k} of ends": node for k, (node, _) in enumerate(ends)}
    index = {f"index {k} of ends": i for k, (_, i) in enumerate(ends)}
    check_dense(features=features, weight=weight, bias=bias, **nodes)
    check_device(features, *index.values())
    check_integers(**index)
    if activation not in ACTIVATIONS:
        raise InputError(f"activation={activation!r} is unknown: use {', '.join(ACTIVATIONS)}")
    check_shape("features", features, ("E", "C"))
    n_edges = len(features)
    for (name, node), (name_of_index, i) in zip(nodes.items(), index.items(), strict=True):
        check_shape(name, node, ("N", "C"))
        check_shape(name_of_index, i, (n_edges,))
        if n_edges and not len(node):
            raise InputError(f"{name} has no rows, but there are {n_edges} edges")
    n_in = features.shape[1] + sum(node.shape[1] for node, _ in ends)
    check_shape("weight", weight, (n_in, "H"))
    check_shape("bias", bias, (weight.shape[1],))
