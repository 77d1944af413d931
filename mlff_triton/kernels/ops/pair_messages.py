"""Sums of neighbor tensors, weighted by factors that both directions of a pair of atoms share.

For every atom ``i``, over the edges ``e = (i, j)`` that it receives:

    M_i = sum_e f(p) * y_j      where p is the pair of the edge

as in TensorNet, whose factors depend on the distance alone. Compared with factors per edge, this
takes half the memory, and half the work to compute them. All edges of atoms to themselves, but not
to their images, are pair 0. The sum is its own adjoint, and its derivative by the factors is a
product per pair:

    gy_j = sum_e f(p) * gM_i            gf(p) = <gM_i, y_j> + <gM_j, y_i>

summed over the components that share a factor. Derivatives of both are of the same two kinds. Each
program owns one atom and a block of channels, and loops over the edges of the atom. Products of a
pair are computed by the program of its first atom. Nothing is scattered, so results are
reproducible to the bit.
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
from mlff_triton.kernels.common.irreps import (
    add,
    dot_parts,
    load_parts,
    load_tensor,
    scale_parts,
    store_parts,
    store_tensor,
)
from mlff_triton.kernels.common.operators import operator, saved_inputs


@triton.jit
def _pair_messages_fwd_kernel(
    y_ptr,
    factors_ptr,
    row_ptr_ptr,
    senders_ptr,
    pairs_ptr,
    out_ptr,
    n_atoms,
    channels,
    BLOCK: tl.constexpr,
):
    """Write messages of tensors y of the neighbors, both [9, N, F].

    Factors are [P, 3, F]. Grid: (N, blocks of channels).
    """
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)
    stride = tl.cast(n_atoms, tl.int64) * channels

    o = tl.zeros((BLOCK,), y_ptr.dtype.element_ty)
    message = (o, o, o, o, o, o, o, o, o)
    for edge in range(first, last):
        sender = tl.load(senders_ptr + edge).to(tl.int64)
        pair = tl.load(pairs_ptr + edge).to(tl.int64)
        y = load_tensor(y_ptr + sender * channels + channel, stride, mask)
        f = load_parts(factors_ptr + pair * 3 * channels + channel, channels, mask)
        message = add(message, scale_parts(f, y))
    store_tensor(out_ptr + atom * channels + channel, stride, message, mask)


@triton.jit
def _pair_messages_bwd_factors_kernel(
    grad_ptr,
    y_ptr,
    row_ptr_ptr,
    senders_ptr,
    pairs_ptr,
    out_ptr,
    own_ptr,
    n_atoms,
    channels,
    BLOCK: tl.constexpr,
):
    """Write the sum of both products of grad and y, [9, N, F] each, of the atoms of every pair.

    Products ``out`` are [P, 3, F]. Products of an atom with itself are written to ``own`` [N, 3,
    F], zero without such an edge. Grid: (N, blocks of channels).
    """
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)
    stride = tl.cast(n_atoms, tl.int64) * channels

    grad = load_tensor(grad_ptr + atom * channels + channel, stride, mask)
    y = load_tensor(y_ptr + atom * channels + channel, stride, mask)
    own = tl.zeros((BLOCK,), y_ptr.dtype.element_ty)
    for edge in range(first, last):
        sender = tl.load(senders_ptr + edge).to(tl.int64)
        pair = tl.load(pairs_ptr + edge).to(tl.int64)
        if pair == 0:
            own += 1
        elif sender >= atom:  # both edges of an atom and its image write the same values
            other_grad = load_tensor(grad_ptr + sender * channels + channel, stride, mask)
            other_y = load_tensor(y_ptr + sender * channels + channel, stride, mask)
            there, back = dot_parts(grad, other_y), dot_parts(other_grad, y)
            both = there[0] + back[0], there[1] + back[1], there[2] + back[2]
            store_parts(out_ptr + pair * 3 * channels + channel, channels, both, mask)
    i, a, s = dot_parts(grad, y)
    store_parts(
        own_ptr + atom * 3 * channels + channel, channels, (own * i, own * a, own * s), mask
    )


def _gradients_of_sums(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    y, factors, *graph = saved_inputs(ctx)
    grad_y = _pair_messages(grad, factors, *graph) if ctx.needs_input_grad[0] else None
    grad_factors = None
    if ctx.needs_input_grad[1]:
        grad_factors = _pair_products(grad, y, *graph, len(factors))
    return grad_y, grad_factors


@operator("pair_messages", outputs="y", differentiate=_gradients_of_sums)
def _pair_messages(
    y: Tensor, factors: Tensor, row_ptr: Tensor, senders: Tensor, pairs: Tensor
) -> Tensor:
    """Sum over the edges that each atom receives: [9, N, F]."""
    out = y.new_empty(y.shape)
    _, n_atoms, channels = y.shape
    if out.numel():
        block = channel_block(y)
        with torch.cuda.device_of(y):
            _pair_messages_fwd_kernel[(n_atoms, triton.cdiv(channels, block))](
                y.contiguous(),
                factors.contiguous(),
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


def _gradients_of_products(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, y, *graph, _ = saved_inputs(ctx)
    grad_x = _pair_messages(y, grad, *graph) if ctx.needs_input_grad[0] else None
    grad_y = _pair_messages(x, grad, *graph) if ctx.needs_input_grad[1] else None
    return grad_x, grad_y


@operator(
    "pair_messages_backward_factors",
    outputs=lambda x, y, row_ptr, senders, pairs, n_pairs: y.new_empty(n_pairs, 3, y.shape[2]),  # noqa: ARG005
    differentiate=_gradients_of_products,
)
def _pair_products(
    x: Tensor, y: Tensor, row_ptr: Tensor, senders: Tensor, pairs: Tensor, n_pairs: int
) -> Tensor:
    """Multiply the tensors of both atoms of each pair: [P, 3, F]; zeros for pairs without atoms."""
    _, n_atoms, channels = y.shape
    out = y.new_zeros(n_pairs, 3, channels)
    if y.numel() and n_pairs:
        own = y.new_empty(n_atoms, 3, channels)
        block = channel_block(y)
        with torch.cuda.device_of(y):
            _pair_messages_bwd_factors_kernel[(n_atoms, triton.cdiv(channels, block))](
                x.contiguous(),
                y.contiguous(),
                row_ptr,
                senders,
                pairs,
                out,
                own,
                n_atoms,
                channels,
                BLOCK=block,
                num_warps=1,
            )
        torch.sum(own, 0, out=out[0])
    return out


def pair_messages(
    y: Tensor, factors: Tensor, row_ptr: Tensor, senders: Tensor, pairs: Tensor
) -> Tensor:
    """Sum neighbor tensors, weighted by factors per pair of atoms; differentiable to any order.

    Parameters
    ----------
    y : [9, N, F]
        Tensor that each atom sends, packed as in `mlff_triton.model.irreps`; float32 or float64.
    factors : [P, 3, F]
        Factors of each pair, one per part of a tensor, of the dtype of ``y``.
    row_ptr, senders : int64 or int32 [N + 1], [E]
        The neighbor list, as in `mlff_triton.Graph`. Edges from ``row_ptr[N]`` on belong to no
        atom. The values are not checked.
    pairs : int64 or int32 [E]
        Pair of each edge, from 1 on. Only two opposite edges share a pair, of two atoms or of an
        atom and its image. All edges of atoms to themselves are pair 0, even if there are none. The
        values are not checked.

    Returns
    -------
    [9, N, F]
        Messages; zero for atoms without neighbors. Gradients of factors that no edge has are zero.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    References
    ----------
    https://arxiv.org/abs/2306.06482, eq. 11; TorchMD-NET's ``tensor_message_passing``.

    Examples
    --------
    >>> y, factors = torch.ones(9, 2, 8, device="cuda"), torch.ones(2, 3, 8, device="cuda")
    >>> graph = torch.tensor([[0, 1, 2], [1, 0, 0], [1, 1, 0]], device="cuda")
    >>> pair_messages(y, factors, graph[0], graph[1, :2], graph[2, :2])[0, :, 0].tolist()
    [1.0, 1.0]
    """
    check_floats(y=y, factors=factors)
    check_shape("y", y, (9, "N", "F"))
    _, n_atoms, channels = y.shape
    check_shape("factors", factors, ("P", 3, channels))
    check_device(y, row_ptr, senders, pairs)
    check_shape("row_ptr", row_ptr, (n_atoms + 1,))
    check_shape("pairs", pairs, (len(senders),))
    check_integers(row_ptr=row_ptr, senders=senders, pairs=pairs)
    message: Tensor = _pair_messages(y, factors, row_ptr, senders, pairs)
    return message
