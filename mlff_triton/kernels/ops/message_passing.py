"""Sums of weighted neighbor tensors, and their derivatives.

For every atom ``i``, over the edges ``e = (i, j)`` that it receives:

    M_i = sum_e f(e) * y_j

The sum is linear in both the tensors and the factors. Its two derivatives,

    gy_j = sum_e f(reverse(e)) * gM_i      over the edges e = (j, i) that j receives
    gf(e) = <gM_i, y_j>                    summed over the components that share a factor

are a sum of the same kind and a product per edge. These three are each other's derivatives to any
order. Each program owns one atom and a block of channels, and loops over the edges of the atom.
Nothing is scattered, so results are reproducible to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.blocks import channel_block
from mlff_triton.kernels.common.checks import check_floats, check_graph, check_shape
from mlff_triton.kernels.common.irreps import add, load_parts, load_tensor, store_tensor
from mlff_triton.kernels.common.operators import operator, saved_inputs


@triton.jit
def _load_factors(pointer, stride, mask, FACTORS: tl.constexpr):
    """Load an edge's factors of the nine components: one for all, one per part, or one each."""
    if FACTORS == 9:
        f = load_tensor(pointer, stride, mask)
    elif FACTORS == 3:
        i, a, s = load_parts(pointer, stride, mask)
        f = (i, a, a, a, s, s, s, s, s)
    else:
        i = tl.load(pointer, mask, other=0.0)
        f = (i, i, i, i, i, i, i, i, i)
    return f


@triton.jit
def _store_factors(pointer, stride, p, mask, FACTORS: tl.constexpr):
    """Store products of nine components, summed over the components that share a factor."""
    if FACTORS == 9:
        store_tensor(pointer, stride, p, mask)
    else:
        a = p[1] + p[2] + p[3]
        s = p[4] + p[5] + p[6] + p[7] + p[8]
        if FACTORS == 3:
            tl.store(pointer, p[0], mask)
            tl.store(pointer + stride, a, mask)
            tl.store(pointer + 2 * stride, s, mask)
        else:
            tl.store(pointer, p[0] + a + s, mask)


@triton.jit
def _multiply(a, b):
    """Multiply nine components elementwise."""
    return (
        a[0] * b[0],
        a[1] * b[1],
        a[2] * b[2],
        a[3] * b[3],
        a[4] * b[4],
        a[5] * b[5],
        a[6] * b[6],
        a[7] * b[7],
        a[8] * b[8],
    )


@triton.jit
def _message_passing_fwd_kernel(
    y_ptr,
    factors_ptr,
    row_ptr_ptr,
    senders_ptr,
    reverse_ptr,
    out_ptr,
    component_stride,
    atom_stride,
    channels,
    FACTORS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write messages of tensors y of the neighbors, both [9, N, F] with the same strides.

    Factors are [E, FACTORS, F], of the edge or, if TRANSPOSED, of its reverse. Grid: (N, blocks of
    channels).
    """
    atom = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)

    z = tl.zeros((BLOCK,), y_ptr.dtype.element_ty)
    message = (z, z, z, z, z, z, z, z, z)
    for edge in range(first, last):
        sender = tl.load(senders_ptr + edge).to(tl.int64)
        source = tl.load(reverse_ptr + edge).to(tl.int64) if TRANSPOSED else edge
        y = load_tensor(y_ptr + sender * atom_stride + offsets, component_stride, mask)
        f = _load_factors(
            factors_ptr + source * FACTORS * channels + offsets, channels, mask, FACTORS
        )
        message = add(message, _multiply(f, y))
    store_tensor(out_ptr + atom * atom_stride + offsets, component_stride, message, mask)


@triton.jit
def _message_passing_bwd_factors_kernel(
    grad_ptr,
    y_ptr,
    row_ptr_ptr,
    senders_ptr,
    out_ptr,
    grad_component_stride,
    grad_atom_stride,
    y_component_stride,
    y_atom_stride,
    channels,
    FACTORS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write products out [E, FACTORS, F] of receivers' grad and senders' y, both [9, N, F].

    Products are summed over the components that share a factor. Grid: (N, blocks of channels).
    """
    atom = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)

    grad = load_tensor(grad_ptr + atom * grad_atom_stride + offsets, grad_component_stride, mask)
    for edge in range(first, last):
        sender = tl.load(senders_ptr + edge).to(tl.int64)
        y = load_tensor(y_ptr + sender * y_atom_stride + offsets, y_component_stride, mask)
        _store_factors(
            out_ptr + edge * FACTORS * channels + offsets,
            channels,
            _multiply(grad, y),
            mask,
            FACTORS,
        )


def _with_dense_layout(x: Tensor) -> Tensor:
    """Return x [9, N, F], copied unless it is dense with component or atom as the first axis."""
    return x if x.movedim(1, 0).is_contiguous() else x.contiguous()


def _gradients_of_sums(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    y, factors, *graph, transposed = saved_inputs(ctx)
    grad_y = grad_factors = None
    if ctx.needs_input_grad[0]:
        grad_y = _message_passing(grad, factors, *graph, not transposed)
    if ctx.needs_input_grad[1]:
        ends = (y, grad) if transposed else (grad, y)
        grad_factors = _edge_products(*ends, *graph, factors.shape[1])
    return grad_y, grad_factors


@operator(
    "message_passing",
    outputs=lambda y, *_: torch.empty_like(_with_dense_layout(y)),
    differentiate=_gradients_of_sums,
)
def _message_passing(
    y: Tensor,
    factors: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
    transposed: bool,
) -> Tensor:
    """Sum over edges at their receivers or, if ``transposed``, at their senders: [9, N, F]."""
    y = _with_dense_layout(y)
    out = torch.empty_like(y)
    _, n_atoms, channels = y.shape
    if out.numel():
        block = channel_block(y)
        with torch.cuda.device_of(y):
            _message_passing_fwd_kernel[(n_atoms, triton.cdiv(channels, block))](
                y,
                factors.contiguous(),
                row_ptr,
                senders,
                reverse,
                out,
                y.stride(0),
                y.stride(1),
                channels,
                FACTORS=factors.shape[1],
                TRANSPOSED=transposed,
                BLOCK=block,
                num_warps=1,
            )
    return out


def _gradients_of_products(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    at_receivers, at_senders, *graph, _ = saved_inputs(ctx)
    grad_receivers = grad_senders = None
    if ctx.needs_input_grad[0]:
        grad_receivers = _message_passing(at_senders, grad, *graph, False)
    if ctx.needs_input_grad[1]:
        grad_senders = _message_passing(at_receivers, grad, *graph, True)
    return grad_receivers, grad_senders


@operator(
    "message_passing_backward_factors",
    outputs=lambda receivers, y, row_ptr, senders, reverse, n_factors: y.new_empty(  # noqa: ARG005
        len(senders), n_factors, y.shape[2]
    ),
    differentiate=_gradients_of_products,
)
def _edge_products(
    at_receivers: Tensor,
    at_senders: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
    n_factors: int,
) -> Tensor:
    """Multiply the tensors at both ends of each edge: [E, n_factors, F]."""
    del reverse  # needed by the derivatives only
    grad, y = _with_dense_layout(at_receivers), _with_dense_layout(at_senders)
    _, n_atoms, channels = y.shape
    out = y.new_zeros(len(senders), n_factors, channels)  # of edges that belong to no atom
    if out.numel() and y.numel():
        block = channel_block(y)
        with torch.cuda.device_of(y):
            _message_passing_bwd_factors_kernel[(n_atoms, triton.cdiv(channels, block))](
                grad,
                y,
                row_ptr,
                senders,
                out,
                grad.stride(0),
                grad.stride(1),
                y.stride(0),
                y.stride(1),
                channels,
                FACTORS=n_factors,
                BLOCK=block,
                num_warps=1,
            )
    return out


def message_passing(
    y: Tensor, factors: Tensor, row_ptr: Tensor, senders: Tensor, reverse: Tensor
) -> Tensor:
    """Sum neighbor tensors, weighted by factors per edge; differentiable to any order.

    Parameters
    ----------
    y : [9, N, F] or [N, 3, 3, F]
        Tensor that each atom sends, packed as in `mlff_triton.model.irreps` or full; float32 or
        float64.
    factors : [E, 3, F], or [E, 3, 3, F] or [E, 1, 1, F] for full tensors
        Factors of each edge: one per part of a packed tensor; one per element of a full tensor, or
        one for all. Of the dtype of ``y``.
    row_ptr, senders, reverse : int64 or int32 [N + 1], [E], [E]
        The neighbor list, as in `mlff_triton.Graph`. Edges from ``row_ptr[N]`` on belong to no
        atom. The values are not checked.

    Returns
    -------
    [9, N, F] or [N, 3, 3, F]
        Messages in the layout of ``y``; zero for atoms without neighbors. Gradients of the factors
        of edges that belong to no atom are zero.

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
    >>> graph = torch.tensor([[0, 1, 2], [1, 0, 0], [1, 0, 0]], device="cuda")
    >>> message_passing(y, factors, graph[0], graph[1, :2], graph[2, :2])[0, :, 0].tolist()
    [1.0, 1.0]
    """
    _check(y, factors, row_ptr, senders, reverse)
    full = y.dim() == 4
    components = y.flatten(1, 2).movedim(1, 0) if full else y
    message: Tensor = _message_passing(
        components, factors.flatten(1, -2), row_ptr, senders, reverse, False
    )
    return message.movedim(0, 1).unflatten(1, (3, 3)) if full else message


def _check(y: Tensor, factors: Tensor, *graph: Tensor) -> None:
    check_floats(y=y, factors=factors)
    channels = y.shape[-1]
    if y.dim() == 4:
        check_shape("y", y, ("N", 3, 3, "F"))
        n_atoms = len(y)
        shared = factors.shape[1:3] == (1, 1)
        check_shape("factors", factors, ("E", *((1, 1) if shared else (3, 3)), channels))
    else:
        check_shape("y", y, (9, "N", "F"))
        n_atoms = y.shape[1]
        check_shape("factors", factors, ("E", 3, channels))
    check_graph(y, n_atoms, len(factors), *graph)
