"""Sums of edge tensors over the edges of each atom, without storing them per edge.

    X_i = sum_e f_1 1 + f_2 A(u) + f_3 (u u^T - |u|^2 / 3)

over the edges ``e = (i, j)`` that atom ``i`` receives, with their directions u: the initial tensors
of TensorNet, G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eq. 8.
Backward, with (g_I, g_a, g_S) the gradients of X_i and w the gradient of <g_S, u u^T - |u|^2 / 3>,

    gf = (g_I, g_a . u, w . u / 2)      gu = sum_F f_2 g_a + f_3 w

w is a linear function of u. Second derivatives are gradients of ``<g, dX>``, where dX is the change
of X for changes du and df of directions and factors:

    dX_i = sum_e df_1 1 + df_2 A(u) + f_2 A(du)
                 + df_3 (u u^T - |u|^2 / 3) + f_3 (u du^T + du u^T - 2 u . du / 3)
    gf = (0, g_a . du, w . du)          gu = sum_F df_2 g_a + df_3 w(u) + f_3 w(du)

Each program owns one atom and loops over its edges, so results are reproducible to the bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.blocks import channel_block
from mlff_triton.kernels.common.checks import (
    check_device,
    check_floats,
    check_shape,
)
from mlff_triton.kernels.common.irreps import (
    add,
    harmonics_change,
    load_parts,
    load_tensor,
    scale_harmonics,
    store_tensor,
    traceless_gradient,
)
from mlff_triton.kernels.common.operators import operator


@triton.jit
def _load_edge(directions_ptr, factors_ptr, edge, channel, channels, mask):
    """Load the three components of an edge's direction, and three blocks of its factors."""
    directions_ptr += 3 * edge
    direction = tl.load(directions_ptr), tl.load(directions_ptr + 1), tl.load(directions_ptr + 2)
    factors_ptr += 3 * edge * channels + channel
    return direction, load_parts(factors_ptr, channels, mask)


@triton.jit
def _dot(a, b):
    """Return the product of two vectors."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def _store_vector(pointer, x, y, z):
    """Store a vector, each component summed over the channels."""
    tl.store(pointer, tl.sum(x))
    tl.store(pointer + 1, tl.sum(y))
    tl.store(pointer + 2, tl.sum(z))


@triton.jit
def _edge_tensors_fwd_kernel(
    directions_ptr,
    factors_ptr,
    row_ptr_ptr,
    out_ptr,
    n_atoms,
    channels,
    BLOCK: tl.constexpr,
):
    """Write sums out [9, N, F] over edges with directions [E, 3] and factors [E, 3, F].

    Grid: (N, blocks of channels).
    """
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)

    o = tl.zeros((BLOCK,), out_ptr.dtype.element_ty)
    total = (o, o, o, o, o, o, o, o, o)
    for edge in range(first, last):
        u, f = _load_edge(directions_ptr, factors_ptr, edge, channel, channels, mask)
        total = add(total, scale_harmonics(f, u[0], u[1], u[2]))

    stride = tl.cast(n_atoms, tl.int64) * channels
    store_tensor(out_ptr + atom * channels + channel, stride, total, mask)


@triton.jit
def _edge_tensors_bwd_kernel(
    grad_ptr,
    directions_ptr,
    factors_ptr,
    row_ptr_ptr,
    grad_directions_ptr,
    grad_factors_ptr,
    n_atoms,
    channels,
    BLOCK: tl.constexpr,
):
    """Write the gradients of directions [E, 3] and factors [E, 3, F] from those of the sums.

    Grid: (N,); a block holds all channels.
    """
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    mask = channel < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)
    stride = tl.cast(n_atoms, tl.int64) * channels
    grad = load_tensor(grad_ptr + atom * channels + channel, stride, mask)
    skew = grad[1], grad[2], grad[3]

    for edge in range(first, last):
        u, f = _load_edge(directions_ptr, factors_ptr, edge, channel, channels, mask)
        w = traceless_gradient(grad, u[0], u[1], u[2])
        pointer = grad_factors_ptr + 3 * edge * channels + channel
        tl.store(pointer, grad[0], mask)
        tl.store(pointer + channels, _dot(skew, u), mask)
        tl.store(pointer + 2 * channels, 0.5 * _dot(w, u), mask)
        _store_vector(
            grad_directions_ptr + 3 * edge,
            f[1] * skew[0] + f[2] * w[0],
            f[1] * skew[1] + f[2] * w[1],
            f[1] * skew[2] + f[2] * w[2],
        )


@triton.jit
def _edge_tensors_bwd_bwd_kernel(
    change_directions_ptr,
    change_factors_ptr,
    grad_ptr,
    directions_ptr,
    factors_ptr,
    row_ptr_ptr,
    change_ptr,
    grad_directions_ptr,
    grad_factors_ptr,
    n_atoms,
    channels,
    BLOCK: tl.constexpr,
):
    """Write the change of the sums [9, N, F], and gradients of its product with grad [9, N, F].

    Given the changes of directions [E, 3] and factors [E, 3, F]; gradients are by both. Grid: (N,);
    a block holds all channels.
    """
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    mask = channel < channels
    first = tl.load(row_ptr_ptr + atom).to(tl.int64)
    last = tl.load(row_ptr_ptr + atom + 1).to(tl.int64)
    stride = tl.cast(n_atoms, tl.int64) * channels
    grad = load_tensor(grad_ptr + atom * channels + channel, stride, mask)
    skew = grad[1], grad[2], grad[3]

    o = tl.zeros((BLOCK,), change_ptr.dtype.element_ty)
    total = (o, o, o, o, o, o, o, o, o)
    for edge in range(first, last):
        u, f = _load_edge(directions_ptr, factors_ptr, edge, channel, channels, mask)
        du, df = _load_edge(
            change_directions_ptr, change_factors_ptr, edge, channel, channels, mask
        )
        total = add(total, scale_harmonics(df, u[0], u[1], u[2]))
        total = add(total, harmonics_change(f, u, du))

        w, dw = (
            traceless_gradient(grad, u[0], u[1], u[2]),
            traceless_gradient(grad, du[0], du[1], du[2]),
        )
        pointer = grad_factors_ptr + 3 * edge * channels + channel
        tl.store(pointer, o, mask)
        tl.store(pointer + channels, _dot(skew, du), mask)
        tl.store(pointer + 2 * channels, _dot(w, du), mask)
        _store_vector(
            grad_directions_ptr + 3 * edge,
            df[1] * skew[0] + df[2] * w[0] + f[2] * dw[0],
            df[1] * skew[1] + df[2] * w[1] + f[2] * dw[1],
            df[1] * skew[2] + df[2] * w[2] + f[2] * dw[2],
        )
    store_tensor(change_ptr + atom * channels + channel, stride, total, mask)


@operator("edge_tensors_backward_twice", outputs=("grad", "directions", "factors"))
def _edge_tensors_backward_twice(
    change_directions: Tensor,
    change_factors: Tensor,
    grad: Tensor,
    directions: Tensor,
    factors: Tensor,
    row_ptr: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of ``grad``, directions and factors from those of their gradients."""
    change = grad.new_empty(grad.shape)
    grad_directions = directions.new_zeros(directions.shape)
    grad_factors = factors.new_empty(factors.shape)
    _, n_atoms, channels = grad.shape
    if grad.numel():
        block = triton.next_power_of_2(channels)
        with torch.cuda.device_of(grad):
            _edge_tensors_bwd_bwd_kernel[(n_atoms,)](
                change_directions.contiguous(),
                change_factors.contiguous(),
                grad.contiguous(),
                directions.contiguous(),
                factors.contiguous(),
                row_ptr,
                change,
                grad_directions,
                grad_factors,
                n_atoms,
                channels,
                BLOCK=block,
                num_warps=min(8, max(1, block * grad.element_size() // 512)),
            )
    return change, grad_directions, grad_factors


@operator(
    "edge_tensors_backward",
    outputs=("directions", "factors"),
    gradients=_edge_tensors_backward_twice,
)
def _edge_tensors_backward(
    grad: Tensor, directions: Tensor, factors: Tensor, row_ptr: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of directions and factors from those of the sums, [9, N, F]."""
    grad_directions = directions.new_zeros(directions.shape)
    grad_factors = factors.new_empty(factors.shape)
    _, n_atoms, channels = grad.shape
    if not grad.numel():
        return grad_directions, grad_factors
    block = triton.next_power_of_2(channels)
    with torch.cuda.device_of(grad):
        _edge_tensors_bwd_kernel[(n_atoms,)](
            grad.contiguous(),
            directions.contiguous(),
            factors.contiguous(),
            row_ptr,
            grad_directions,
            grad_factors,
            n_atoms,
            channels,
            BLOCK=block,
            num_warps=min(8, max(1, block * grad.element_size() // 512)),
        )
    return grad_directions, grad_factors


def _empty_sums(directions: Tensor, factors: Tensor, row_ptr: Tensor) -> Tensor:
    return directions.new_empty(9, len(row_ptr) - 1, factors.shape[2])


@operator("edge_tensors", outputs=_empty_sums, gradients=_edge_tensors_backward)
def _edge_tensors(directions: Tensor, factors: Tensor, row_ptr: Tensor) -> Tensor:
    """Return the sums [9, N, F]."""
    out = _empty_sums(directions, factors, row_ptr)
    _, n_atoms, channels = out.shape
    if out.numel():
        block = channel_block(out)
        with torch.cuda.device_of(out):
            _edge_tensors_fwd_kernel[(n_atoms, triton.cdiv(channels, block))](
                directions.contiguous(),
                factors.contiguous(),
                row_ptr,
                out,
                n_atoms,
                channels,
                BLOCK=block,
                num_warps=1,
            )
    return out


def edge_tensors(directions: Tensor, factors: Tensor, row_ptr: Tensor) -> Tensor:
    """Sum edge tensors over the edges that each atom receives; differentiable twice.

    Parameters
    ----------
    directions : [E, 3]
        Unit vectors, or zero for the edge of an atom to itself; float32 or float64.
    factors : [E, 3, F]
        Factors of the identity, the skew and the symmetric traceless tensor of each edge, of the
        dtype of the directions.
    row_ptr : int64 or int32 [N + 1]
        Edges of receiver ``i`` are ``row_ptr[i]:row_ptr[i + 1]``. The values are not
        checked. Edges from ``row_ptr[N]`` on belong to no atom; gradients of
        their factors are undefined.

    Returns
    -------
    [9, N, F]
        Packed components, as in `mlff_triton.model.irreps`; zero for atoms without edges.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    References
    ----------
    https://arxiv.org/abs/2306.06482, eq. 8; TorchMD-NET's ``tensornet_embedding_message_passing``.

    Examples
    --------
    >>> up, factors = torch.tensor([[0.0, 0.0, 1.0]]).cuda(), torch.ones(1, 3, 8).cuda()
    >>> edge_tensors(up, factors, torch.tensor([0, 1]).cuda())[:4, 0, 0].tolist()
    [1.0, 0.0, 0.0, 1.0]
    """
    check_shape("directions", directions, ("E", 3))
    check_shape("factors", factors, (len(directions), 3, "F"))
    check_shape("row_ptr", row_ptr, ("N + 1",))
    check_floats(directions=directions, factors=factors)
    check_device(directions, row_ptr)
    if row_ptr.dtype not in (torch.int64, torch.int32) or not len(row_ptr):
        raise InputError("row_ptr must be int64 or int32, with at least one element")
    sums: Tensor = _edge_tensors(directions, factors, row_ptr)
    return sums
