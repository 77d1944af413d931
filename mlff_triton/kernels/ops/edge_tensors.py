"""Sums of edge tensors over the edges of each atom, without storing them per edge.

    X_i = sum_e f_1 1 + f_2 A(u) + f_3 (u u^T - |u|^2 / 3)

over the edges ``e = (i, j)`` that atom ``i`` receives, with their directions u: the initial tensors
of TensorNet, G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eq. 8.
Backward, with (g_I, g_a, g_S) the gradients of X_i and w the gradient of <g_S, u u^T - |u|^2 / 3>,

    gf = (g_I, g_a . u, w . u / 2)      gu = sum_F f_2 g_a + f_3 w

Each program owns one atom and loops over its edges, so results are reproducible to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import (
    check_device,
    check_floats,
    check_shape,
)
from mlff_triton.kernels.common.derivatives import differentiate_by_reference
from mlff_triton.kernels.common.irreps import (
    add,
    load_parts,
    load_tensor,
    scale_harmonics,
    store_tensor,
)
from mlff_triton.kernels.ops.reference import edge_tensors as reference


@triton.jit
def _load_edge(directions_ptr, factors_ptr, edge, channel, channels, mask):
    """Load the three components of an edge's direction, and three blocks of its factors."""
    directions_ptr += 3 * edge
    direction = tl.load(directions_ptr), tl.load(directions_ptr + 1), tl.load(directions_ptr + 2)
    factors_ptr += 3 * edge * channels + channel
    return direction, load_parts(factors_ptr, channels, mask)


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
    i, a0, a1, a2, s00, s01, s02, s11, s12 = grad
    s22 = 2 * (s00 + s11) / 3  # twice the trace term |u|^2 / 3

    for edge in range(first, last):
        u, f = _load_edge(directions_ptr, factors_ptr, edge, channel, channels, mask)
        x, y, z = u
        wx = (2 * s00 - s22) * x + s01 * y + s02 * z
        wy = s01 * x + (2 * s11 - s22) * y + s12 * z
        wz = s02 * x + s12 * y - s22 * z

        pointer = grad_factors_ptr + 3 * edge * channels + channel
        tl.store(pointer, i, mask)
        tl.store(pointer + channels, a0 * x + a1 * y + a2 * z, mask)
        tl.store(pointer + 2 * channels, 0.5 * (wx * x + wy * y + wz * z), mask)
        pointer = grad_directions_ptr + 3 * edge
        tl.store(pointer, tl.sum(f[1] * a0 + f[2] * wx))
        tl.store(pointer + 1, tl.sum(f[1] * a1 + f[2] * wy))
        tl.store(pointer + 2, tl.sum(f[1] * a2 + f[2] * wz))


def launch_edge_tensors(directions: Tensor, factors: Tensor, row_ptr: Tensor) -> Tensor:
    """Launch the forward kernel; return the sums [9, N, F]."""
    out = _empty_sums(directions, factors, row_ptr)
    _, n_atoms, channels = out.shape
    if out.numel():
        block = min(triton.next_power_of_2(channels), 512 // out.element_size())
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


def launch_edge_tensors_backward(
    grad: Tensor, directions: Tensor, factors: Tensor, row_ptr: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of directions and factors from those of the sums, [9, N, F]."""
    grad_directions = directions.new_empty(directions.shape)
    grad_factors = factors.new_empty(factors.shape)
    _, n_atoms, channels = grad.shape
    if not grad.numel():
        return grad_directions.zero_(), grad_factors
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


@torch.library.custom_op("mlff_triton::edge_tensors", mutates_args=())
def _edge_tensors(directions: Tensor, factors: Tensor, row_ptr: Tensor) -> Tensor:
    return launch_edge_tensors(directions, factors, row_ptr)


@torch.library.custom_op("mlff_triton::edge_tensors_backward", mutates_args=())
def _edge_tensors_backward(
    grad: Tensor, directions: Tensor, factors: Tensor, row_ptr: Tensor
) -> tuple[Tensor, Tensor]:
    return launch_edge_tensors_backward(grad, directions, factors, row_ptr)


def _empty_sums(directions: Tensor, factors: Tensor, row_ptr: Tensor) -> Tensor:
    return directions.new_empty(9, len(row_ptr) - 1, factors.shape[2])


_edge_tensors.register_fake(_empty_sums)


@_edge_tensors_backward.register_fake
def _(grad: Tensor, directions: Tensor, factors: Tensor, row_ptr: Tensor) -> tuple[Tensor, Tensor]:
    del grad, row_ptr
    return directions.new_empty(directions.shape), factors.new_empty(factors.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


_edge_tensors.register_autograd(
    lambda ctx, grad: (*_edge_tensors_backward(grad, *ctx.saved_tensors), None),
    setup_context=_save,
)
differentiate_by_reference(_edge_tensors_backward, reference.edge_tensors)


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
        checked. Edges from ``row_ptr[N]`` on belong to no atom; their gradients are undefined.

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
