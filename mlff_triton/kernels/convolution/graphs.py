"""Arguments that convolutions share: graphs, coupling matrices, and sums or means."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_integers, check_shape
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES
from mlff_triton.kernels.convolution.clebsch_gordan import coupling
from mlff_triton.kernels.convolution.types import TensorProduct, columns_of
from mlff_triton.kernels.ops.linear import linear

REDUCTIONS = ("sum", "mean")


def check_graph(
    node: Tensor,
    edge_sh: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str,
) -> None:
    """Raise unless nodes, harmonics and a CSR graph fit a product.

    Raises
    ------
    InputError
        If a shape or dtype is wrong, the tensors are on different devices, or there are edges
        without nodes.
    BackendError
        If their device is not a GPU.
    """
    check_device(node, row_ptr, senders)
    check_integers(row_ptr=row_ptr, senders=senders)
    check_shape("senders", senders, ("E",))
    check_shape("row_ptr", row_ptr, ("N + 1",))
    check_shape("node", node, ("S", columns_of(product.node)))
    check_shape("edge_sh", edge_sh, (len(senders), columns_of(product.harmonics)))
    if not len(row_ptr):
        raise InputError("row_ptr is empty: it needs one more element than there are receivers")
    if len(senders) and not (len(node) and len(row_ptr) > 1):
        raise InputError(f"there are {len(senders)} edges, but no nodes that they connect")
    if reduce not in REDUCTIONS:
        raise InputError(f"reduce={reduce!r} is unknown: use {' or '.join(map(repr, REDUCTIONS))}")


def coupling_matrices(edge_sh: Tensor, product: TensorProduct) -> Tensor:
    """Return the coupling matrices of edges [E, P], in the dtype of sums."""
    dtype = COMPUTE_DTYPES[edge_sh.dtype]
    table = _coupling_on(product, dtype, edge_sh.device)
    return linear(edge_sh.to(dtype), table, precision="ieee")


@cache
def _coupling_on(product: TensorProduct, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False):
        return coupling(product).to(device, dtype)


def receivers_of(row_ptr: Tensor, n_edges: int) -> Tensor:
    """Return the receiver of each edge, int64 [E]."""
    nodes = torch.arange(len(row_ptr) - 1, device=row_ptr.device)
    return nodes.repeat_interleave(row_ptr.diff(), output_size=n_edges)


def reduced(sums: Tensor, row_ptr: Tensor, reduce: str) -> Tensor:
    """Return sums over the edges of nodes [N, ...] as they are, or as means."""
    return sums / row_ptr.diff().clamp(min=1)[:, None] if reduce == "mean" else sums


def gradient_of_sums(grad: Tensor, row_ptr: Tensor, reduce: str, dtype: torch.dtype) -> Tensor:
    """Return the gradients of sums [N, output] from those of sums or means."""
    return reduced(grad.to(dtype), row_ptr, reduce).contiguous()


def empty_output(node: Tensor, row_ptr: Tensor, product: str) -> Tensor:
    """Return an uninitialized result [N, output columns]."""
    return node.new_empty(len(row_ptr) - 1, columns_of(TensorProduct.parse(product).output))
