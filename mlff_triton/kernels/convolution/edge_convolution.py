"""Equivariant convolution with weights from a network per edge, which are never stored.

    y_i = sum_e sum_p W_p(h_e) (x_j *_p s_e)          W(h) = h weight + bias

over the edges ``e = (i, j)`` that node ``i`` receives, for node features x, spherical harmonics s,
and paths p of a tensor product. M. Geiger, T. Smidt, "e3nn: Euclidean neural networks",
https://arxiv.org/abs/2207.09453, sections 3 and 5.

If the weights mix channels, a first kernel computes the coupling matrices of each edge from
harmonics and Wigner 3j symbols. Other kernels compute weights for a tile of edges and use them at
once, and messages are summed by receiver, in order. If receivers have many edges, outer products of
edges are summed instead, and weights are applied once per receiver. Kernels compute gradients, too;
second derivatives come from the plain PyTorch reference.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_shape
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES, check_dense
from mlff_triton.kernels.common.operators import by_chosen, by_reference, chosen_like, operator
from mlff_triton.kernels.convolution.channel_network import network_gradients, network_sums
from mlff_triton.kernels.convolution.contracted_sums import applies_weights_once, contracted_sums
from mlff_triton.kernels.convolution.coupling_matrices import coupling_matrices
from mlff_triton.kernels.convolution.edge_blocks import (
    MAX_HIDDEN,
    EdgeInputs,
    pack_weight,
)
from mlff_triton.kernels.convolution.edge_gradients import edge_gradients
from mlff_triton.kernels.convolution.edge_messages import edge_messages
from mlff_triton.kernels.convolution.graphs import check_graph, empty_output, receiver_sums
from mlff_triton.kernels.convolution.plan import plan_of
from mlff_triton.kernels.convolution.reference import edge_convolution as reference
from mlff_triton.kernels.convolution.types import TensorProduct


def _reference(
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
) -> Tensor:
    """Convolve in plain PyTorch, in the dtype of sums."""
    sums = COMPUTE_DTYPES[node.dtype]
    out = reference.edge_convolution(
        node.to(sums),
        edge_sh.to(sums),
        hidden.to(sums),
        weight.to(sums),
        bias.to(sums),
        row_ptr,
        senders,
        TensorProduct.parse(product),
        reduce,
    )
    return out.to(node.dtype)


@operator(
    "edge_convolution_gradient",
    outputs=chosen_like(5),
    differentiate=by_reference(_reference, chosen=True),
)
def _gradient(
    grad: Tensor,
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
    wanted: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the wanted gradients of floating-point inputs, and empty tensors for the others."""
    parsed = TensorProduct.parse(product)
    floats = node, edge_sh, hidden, weight, bias
    find = network_gradients if parsed.mode == "uvu" else edge_gradients
    found = find(wanted, grad, *floats, row_ptr, senders, parsed, reduce)
    return tuple(  # type: ignore[return-value]
        x.new_empty(0) if k not in wanted or y is None else y.to(x.dtype)
        for k, (x, y) in enumerate(zip(floats, found, strict=True))
    )


@operator(
    "edge_convolution",
    outputs=lambda node, *others: empty_output(node, others[4], others[6]),
    differentiate=by_chosen(_gradient, 5),
)
def _edge_convolution(
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
) -> Tensor:
    """Return the convolved features [N, output columns]."""
    parsed = TensorProduct.parse(product)
    floats = node, edge_sh, hidden, weight, bias
    if parsed.mode == "uvu":
        return network_sums(*floats, row_ptr, senders, parsed, reduce)
    matrices = coupling_matrices(edge_sh, parsed)
    inputs = EdgeInputs(node.contiguous(), matrices, hidden.contiguous(), senders.contiguous())
    if applies_weights_once(hidden, weight, row_ptr):
        return contracted_sums(inputs, weight, bias, row_ptr, parsed, reduce)
    plan = plan_of(parsed, node.device)
    messages = edge_messages(inputs, pack_weight(weight, bias, plan.source), plan, parsed)
    return receiver_sums(messages, row_ptr, reduce, node.dtype)


def edge_convolution(
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str = "sum",
) -> Tensor:
    """Convolve node features on a graph, without storing the weights of edges.

    The last layer of the network that makes the weights is part of the operator: ``hidden`` are its
    inputs. Differentiable twice, with respect to all floating-point inputs.

    Parameters
    ----------
    node : [S, node columns]
        Features of sending nodes, in the irreps ``product.node``; float16, bfloat16, float32 or
        float64. Half precisions are summed in float32.
    edge_sh : [E, harmonics]
        Spherical harmonics of edges, in the irreps ``product.harmonics``.
    hidden : [E, H]
        Hidden values of the network for each edge; H is at most 256.
    weight, bias : [H, weights], [weights] or None
        Last layer of that network, in the order of ``product``.
    row_ptr, senders : int64 or int32 [N + 1], [E]
        Receiver ``i`` has the edges ``row_ptr[i]:row_ptr[i + 1]``, from 0 to E without gaps, and
        edge ``e`` comes from node ``senders[e]``. The values are not checked.
    product : TensorProduct
        Irreps and paths.
    reduce : {"sum", "mean"}
        Sum or mean of the messages that a node receives; 0 for nodes without edges.

    Returns
    -------
    [N, output columns]
        In the irreps ``product.output``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, a size is not supported, or ``reduce`` is
        unknown.
    BackendError
        If the tensors are not on a GPU.

    References
    ----------
    https://arxiv.org/abs/2207.09453, sections 3 and 5.

    Examples
    --------
    >>> product = TensorProduct.of("4x0e", "1x0e + 1x1o", "4x0e + 2x1o")
    >>> node, edge_sh = torch.ones(2, 4).cuda(), torch.ones(3, 4).cuda()
    >>> hidden, weight = torch.ones(3, 8).cuda(), torch.ones(8, product.n_weights).cuda()
    >>> graph = torch.tensor([0, 2, 3]).cuda(), torch.tensor([0, 1, 0]).cuda()
    >>> edge_convolution(node, edge_sh, hidden, weight, None, *graph, product).shape
    torch.Size([2, 10])
    """
    _check(node, edge_sh, hidden, weight, bias, row_ptr, senders, product, reduce)
    if bias is None:
        bias = weight.new_zeros(product.n_weights)
    floats = node, edge_sh, hidden, weight, bias
    out: Tensor = _edge_convolution(*floats, row_ptr, senders, product.text, reduce)
    return out


def _check(
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str,
) -> None:
    check_dense(node=node, edge_sh=edge_sh, hidden=hidden, weight=weight, bias=bias)
    check_graph(node, edge_sh, row_ptr, senders, product, reduce)
    check_shape("hidden", hidden, (senders.shape[0], "H"))
    n_hidden = hidden.shape[1]
    if not 1 <= n_hidden <= MAX_HIDDEN:
        raise InputError(
            f"hidden has {n_hidden} values per edge: use 1 to {MAX_HIDDEN}, or add the "
            "results of parts of them"
        )
    check_shape("weight", weight, (n_hidden, product.n_weights))
    if bias is not None:
        check_shape("bias", bias, (product.n_weights,))
