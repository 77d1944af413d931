"""Initial tensors of TensorNet, summed over edges without storing anything per edge and channel.

    X_i = sum_e w_e (f_1 1 + f_2 A(u) + f_3 (u u^T - |u|^2 / 3))      w_e = a_i + b_j

over the edges ``e = (i, j)`` that atom ``i`` receives, with their directions u: G. Simeon and
G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eq. 8. The factors f depend on the
distance, and so belong to a pair of atoms, whereas a and b depend on the element of an atom. For
the derivatives see `mlff_triton.kernels.ops.pair_embedding_backward`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.blocks import channel_block
from mlff_triton.kernels.common.checks import (
    check_device,
    check_floats,
    check_integers,
    check_shape,
)
from mlff_triton.kernels.common.irreps import add, load_parts, scale_harmonics, store_tensor
from mlff_triton.kernels.common.operators import needed_gradients, operator, saved_inputs
from mlff_triton.kernels.ops.pair_embedding_backward import launch_backward, load_vector, scale_all


@triton.jit
def _pair_embedding_fwd_kernel(
    directions_ptr,
    factors_ptr,
    at_receivers_ptr,
    at_senders_ptr,
    row_ptr_ptr,
    senders_ptr,
    pairs_ptr,
    out_ptr,
    n_atoms,
    channels,
    BLOCK: tl.constexpr,
):
    """Write tensors out [9, N, F].

    Directions are [E, 3], factors [P, 3, F], and terms of receivers and senders [N, F]. Grid: (N,
    blocks of channels).
    """
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)
    a = tl.load(at_receivers_ptr + atom * channels + channel, mask, other=0.0)

    o = tl.zeros((BLOCK,), out_ptr.dtype.element_ty)
    total = (o, o, o, o, o, o, o, o, o)
    for edge in range(first, last):
        sender = tl.load(senders_ptr + edge).to(tl.int64)
        pair = tl.load(pairs_ptr + edge).to(tl.int64)
        u = load_vector(directions_ptr, edge)
        f = load_parts(factors_ptr + pair * 3 * channels + channel, channels, mask)
        w = a + tl.load(at_senders_ptr + sender * channels + channel, mask, other=0.0)
        total = add(total, scale_harmonics(scale_all(w, f), u[0], u[1], u[2]))

    stride = tl.cast(n_atoms, tl.int64) * channels
    store_tensor(out_ptr + atom * channels + channel, stride, total, mask)


def _empty_gradients(directions: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """Return tensors like the inputs, except that directions may be empty."""
    *tensors, with_directions = others
    n_edges = len(directions) if with_directions else 0
    return directions.new_empty(n_edges, 3), *(t.new_empty(t.shape) for t in tensors)


def _empty_second_gradients(*inputs: Any) -> tuple[Tensor, ...]:
    grad = inputs[4]
    return grad.new_empty(grad.shape), *_empty_gradients(*inputs[5:9], inputs[-1])


def _second_gradients(
    ctx: Any, change_directions: Tensor, *changes: Tensor
) -> tuple[Tensor | None, ...]:
    *saved, has_directions = saved_inputs(ctx)
    if not has_directions:
        change_directions = torch.zeros_like(saved[1])
    with_directions = needed_gradients(ctx)[1]
    change, of_directions, *found = _pair_embedding_backward_twice(
        change_directions, *changes, *saved, with_directions
    )
    return change, of_directions if with_directions else None, *found


@operator("pair_embedding_backward_twice", outputs=_empty_second_gradients)
def _pair_embedding_backward_twice(
    change_directions: Tensor,
    change_factors: Tensor,
    change_receivers: Tensor,
    change_senders: Tensor,
    grad: Tensor,
    directions: Tensor,
    factors: Tensor,
    at_receivers: Tensor,
    at_senders: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    pairs: Tensor,
    reverse: Tensor,
    with_directions: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = directions, factors, at_receivers, at_senders
    graph = row_ptr, senders, pairs, reverse
    changes = change_directions, change_factors, change_receivers, change_senders
    return launch_backward(grad, inputs, graph, changes, with_directions=with_directions)  # type: ignore[return-value]


@operator(
    "pair_embedding_backward",
    outputs=lambda grad, *inputs: _empty_gradients(*inputs[:4], inputs[-1]),  # noqa: ARG005
    differentiate=_second_gradients,
)
def _pair_embedding_backward(
    grad: Tensor,
    directions: Tensor,
    factors: Tensor,
    at_receivers: Tensor,
    at_senders: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    pairs: Tensor,
    reverse: Tensor,
    with_directions: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = directions, factors, at_receivers, at_senders
    graph = row_ptr, senders, pairs, reverse
    return launch_backward(grad, inputs, graph, with_directions=with_directions)  # type: ignore[return-value]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    with_directions = needed_gradients(ctx)[0]
    of_directions, *found = _pair_embedding_backward(grad, *saved_inputs(ctx), with_directions)
    return of_directions if with_directions else None, *found


@operator(
    "pair_embedding",
    outputs=lambda directions, factors, at_receivers, *_: directions.new_empty(  # noqa: ARG005
        9, *at_receivers.shape
    ),
    differentiate=_gradients,
)
def _pair_embedding(
    directions: Tensor,
    factors: Tensor,
    at_receivers: Tensor,
    at_senders: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    pairs: Tensor,
    reverse: Tensor,
) -> Tensor:
    del reverse  # needed by the derivatives only
    n_atoms, channels = at_receivers.shape
    out = directions.new_empty(9, n_atoms, channels)
    if out.numel():
        block = channel_block(out)
        with torch.cuda.device_of(out):
            _pair_embedding_fwd_kernel[(n_atoms, triton.cdiv(channels, block))](
                directions.contiguous(),
                factors.contiguous(),
                at_receivers.contiguous(),
                at_senders.contiguous(),
                row_ptr,
                senders,
                pairs,
                out,
                n_atoms,
                channels,
                BLOCK=block,
                num_warps=1,
            )
    return out


def pair_embedding(
    directions: Tensor,
    factors: Tensor,
    at_receivers: Tensor,
    at_senders: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    pairs: Tensor,
    reverse: Tensor,
) -> Tensor:
    """Sum tensors of edges with factors of pairs and terms of atoms; differentiable twice.

    Parameters
    ----------
    directions : [E, 3]
        Unit vectors, or zero for the edge of an atom to itself; float32 or float64.
    factors : [P, 3, F]
        Factors of the identity, the skew and the symmetric traceless tensor of each pair, of the
        dtype of the directions.
    at_receivers, at_senders : [N, F]
        Terms of the receiver and the sender of an edge. Their sum is one more factor.
    row_ptr, senders, reverse : int64 or int32 [N + 1], [E], [E]
        The neighbor list, as in `mlff_triton.Graph`. Edges from ``row_ptr[N]`` on belong to no
        atom. The values are not checked.
    pairs : int64 or int32 [E]
        Pair of each edge, as in `mlff_triton.kernels.ops.pair_messages.pair_messages`.

    Returns
    -------
    [9, N, F]
        Packed components, as in `mlff_triton.model.irreps`; zero for atoms without edges. Gradients
        of factors that no edge has are zero.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    References
    ----------
    https://arxiv.org/abs/2306.06482, eq. 8; TorchMD-NET's ``TensorEmbedding``.

    Examples
    --------
    >>> up = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], device="cuda")
    >>> factors, ones = torch.ones(2, 3, 8, device="cuda"), torch.ones(2, 8, device="cuda")
    >>> graph = torch.tensor([[0, 1, 2], [1, 0, 0], [1, 1, 0], [1, 0, 0]], device="cuda")
    >>> row_ptr, (senders, pairs, reverse) = graph[0], graph[1:, :2]
    >>> pair_embedding(up, factors, ones, ones, row_ptr, senders, pairs, reverse)[:4, 0, 0].tolist()
    [2.0, 0.0, 0.0, 2.0]
    """
    check_shape("directions", directions, ("E", 3))
    check_shape("factors", factors, ("P", 3, "F"))
    check_shape("at_receivers", at_receivers, ("N", factors.shape[2]))
    check_shape("at_senders", at_senders, at_receivers.shape)
    check_floats(
        directions=directions, factors=factors, at_receivers=at_receivers, at_senders=at_senders
    )
    graph = {"row_ptr": row_ptr, "senders": senders, "pairs": pairs, "reverse": reverse}
    check_device(directions, *graph.values())
    check_integers(**graph)
    for name, index in graph.items():
        n = len(at_receivers) + 1 if name == "row_ptr" else len(directions)
        check_shape(name, index, (n,))
    tensors: Tensor = _pair_embedding(
        directions, factors, at_receivers, at_senders, *graph.values()
    )
    return tensors
