"""Layer of a network of edges, whose inputs are features of edges and rows of their nodes.

    y_e = activation([f_e, x_i, x_j] W + b) = activation(f_e W_f + b + (x W_i)_i + (x W_j)_j)

for an edge ``e`` with features f, and the rows x of nodes ``i`` and ``j``. M. Geiger, T. Smidt,
"e3nn: Euclidean neural networks", https://arxiv.org/abs/2207.09453, section 5. Terms of nodes are
computed once per node, and added to the products of edges. Joined inputs are not stored.

Products in float32 have all of its bits: see `mlff_triton.kernels.numerics.product.FULL`.
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
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.checks import check_device, check_integers, check_shape
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES, accumulator, check_dense
from mlff_triton.kernels.common.operators import operator
from mlff_triton.kernels.common.reference.activations import ACTIVATIONS
from mlff_triton.kernels.numerics.product import FULL


class _Tile(NamedTuple):
    """Sizes of the blocks of a program, and its warps."""

    rows: int
    columns: int
    inner: int
    warps: int


@triton.jit
def _edge_network_fwd_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    terms_ptrs,
    index_ptrs,
    out_ptr,
    n_rows,
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
    """Write rows [n_rows, n_out] from x [n_rows, n_in], whose rows are ``x_row`` elements apart.

    Terms [nodes, n_out] are added as their indices [n_rows] say. Grid: tiles of M rows, with all
    blocks of N columns each, on one axis, as the others hold 65,535 programs at most.
    """
    n_blocks = tl.cdiv(n_out, N)
    tile, block = tl.program_id(0) // n_blocks, tl.program_id(0) % n_blocks
    row = tile.to(tl.int64) * M + tl.arange(0, M)
    column = (block * N + tl.arange(0, N))[None, :]
    live = row < n_rows
    mask = live[:, None] & (column < n_out)

    sums = tl.zeros((M, N), ACC)
    for start in range(0, n_in, K):
        k = start + tl.arange(0, K)
        x = tl.load(
            x_ptr + row[:, None] * x_row + k[None, :],
            live[:, None] & (k < n_in)[None, :],
            other=0.0,
        )  # [M, K]
        weight = tl.load(
            weight_ptr + k[:, None] * n_out + column,
            (k < n_in)[:, None] & (column < n_out),
            other=0.0,
        )  # [K, N]
        sums = tl.dot(x, weight, sums, input_precision=PRECISION, out_dtype=ACC)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + column, column < n_out, other=0.0).to(ACC)
    for k in tl.static_range(len(terms_ptrs)):
        node = tl.load(index_ptrs[k] + row, live, other=0).to(tl.int64)
        sums += tl.load(terms_ptrs[k] + node[:, None] * n_out + column, mask, other=0.0)

    y = activate(sums, ACTIVATION)
    tl.store(out_ptr + row[:, None] * n_out + column, y.to(out_ptr.dtype.element_ty), mask)


def _tile(x: Tensor, n_out: int) -> _Tile:
    """Return a tile whose rows and weights of float64 fit in registers, too."""
    inner = 32 if x.dtype == torch.float64 else 64
    return _Tile(64, min(64, block_side(n_out)), min(inner, block_side(x.shape[1])), 4)


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    terms: tuple[Tensor, ...],
    index: tuple[Tensor, ...],
    out: Tensor,
    activation: str,
) -> None:
    """Write a linear map of rows x, plus terms of their nodes, after an activation."""
    if not out.numel():
        return
    n_rows, n_out = out.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    tile = _tile(x, n_out)
    with torch.cuda.device_of(x):
        _edge_network_fwd_kernel[
            (triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_out, tile.columns),)
        ](
            x,
            weight,
            bias,
            terms,
            index,
            out,
            n_rows,
            x.shape[1],
            n_out,
            x.stride(0),
            ACTIVATION=activation,
            PRECISION=FULL.value if x.dtype == torch.float32 else "ieee",
            ACC=accumulator(x),
            M=tile.rows,
            N=tile.columns,
            K=tile.inner,
            num_warps=tile.warps,
        )


def _terms(nodes: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the products of rows of nodes and their weights, in the dtype of sums."""
    found = []
    for x, weight in zip(nodes, weights, strict=True):
        term = x.new_empty(len(x), weight.shape[1], dtype=COMPUTE_DTYPES[x.dtype])
        _launch(x, weight, None, (), (), term, "none")
        found.append(term)
    return tuple(found)


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
    """Apply the layer."""
    out = _empty_hidden(features, nodes, index, weight)
    if out.numel():
        own, *others = weight.contiguous().split([x.shape[1] for x in (features, *nodes)])
        terms, rows = _terms(nodes, others), tuple(i.contiguous() for i in index)
        _launch(features, own, bias.contiguous(), terms, rows, out, activation)
    return out


def edge_network(
    features: Tensor,
    ends: Sequence[tuple[Tensor, Tensor]],
    weight: Tensor,
    bias: Tensor,
    activation: str = "relu",
) -> Tensor:
    """Apply a linear map to the features of edges and the rows of their nodes, and an activation.

    The result is that of ``activation(cat([features, node[index], ...], 1) @ weight + bias)`` for
    each ``node, index`` of ``ends``. It has no derivatives: a backward pass raises an error.

    Parameters
    ----------
    features : [E, C]
        Features of edges; float16, bfloat16, float32 or float64. Half precisions are summed in
        float32.
    ends : sequence of ([N, C_k], int64 or int32 [E])
        Rows of nodes, and the node of each edge, such as that of receivers and that of senders.
        Rows may be columns of wider ones. The values of indices are not checked.
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
    check_dense(features=features, weight=weight, bias=bias, **nodes)
    if activation not in ACTIVATIONS:
        raise InputError(f"activation={activation!r} is unknown: use {', '.join(ACTIVATIONS)}")
    check_shape("features", features, ("E", "C"))
    for k, (node, index) in enumerate(ends):
        check_device(features, index)
        check_integers(**{f"index {k} of ends": index})
        check_shape(f"node {k} of ends", node, ("N", "C"))
        check_shape(f"index {k} of ends", index, (len(features),))
        if len(index) and not len(node):
            raise InputError(f"node {k} of ends has no rows, but there are {len(index)} edges")
    n_in = features.shape[1] + sum(node.shape[1] for node, _ in ends)
    check_shape("weight", weight, (n_in, "H"))
    check_shape("bias", bias, (weight.shape[1],))
