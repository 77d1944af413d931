"""3x3 tensors of vectors, times one factor per channel.

    symmetric, traceless:  S(v) = v v^T - |v|^2 / 3        skew:  A(v) u = v x u

    A_01 = -v_2    A_02 = v_1    A_12 = -v_0

These are the initial tensors of TensorNet: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, section 3. Backward, with ``W = sum_f factor_f g_f``,

    gv = (W + W^T) v - 2/3 tr(W) v    or    gv = (W_21 - W_12, W_02 - W_20, W_10 - W_01)
    gfactor_f = <g_f, S(v)>           or    <g_f, A(v)>
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_floats, check_shape
from mlff_triton.kernels.common.irreps import (
    MAX_ELEMENTS,
    block_size,
    dot,
    load_nine,
    store_nine,
    times,
)
from mlff_triton.kernels.common.operators import by_reference, operator
from mlff_triton.kernels.ops.reference import vector_to_tensor as reference


@triton.jit
def _load_vector(v_ptr, edge, mask):
    """Load the three components of the vectors of a block of edges."""
    v_ptr += edge.to(tl.int64) * 3
    v0 = tl.load(v_ptr, mask, other=0.0)
    v1 = tl.load(v_ptr + 1, mask, other=0.0)
    v2 = tl.load(v_ptr + 2, mask, other=0.0)
    return v0, v1, v2


@triton.jit
def _tensor(v0, v1, v2, SKEW: tl.constexpr):
    """Return the nine entries of the tensor, row by row."""
    if SKEW:
        o = tl.zeros_like(v0)
        t = (o, -v2, v1, v2, o, -v0, -v1, v0, o)
    else:
        i = (v0 * v0 + v1 * v1 + v2 * v2) / 3
        s01, s02, s12 = v0 * v1, v0 * v2, v1 * v2
        t = (v0 * v0 - i, s01, s02, s01, v1 * v1 - i, s12, s02, s12, v2 * v2 - i)
    return t


@triton.jit
def _tensor_adjoint(g, v0, v1, v2, SKEW: tl.constexpr):
    """Return the gradient of the vector from that of the nine entries."""
    g00, g01, g02, g10, g11, g12, g20, g21, g22 = g
    if SKEW:
        h0, h1, h2 = g21 - g12, g02 - g20, g10 - g01
    else:
        i = (g00 + g11 + g22) / 3
        h0 = 2 * (g00 - i) * v0 + (g01 + g10) * v1 + (g02 + g20) * v2
        h1 = (g10 + g01) * v0 + 2 * (g11 - i) * v1 + (g12 + g21) * v2
        h2 = (g20 + g02) * v0 + (g21 + g12) * v1 + 2 * (g22 - i) * v2
    return h0, h1, h2


@triton.jit
def _vector_to_tensor_fwd_kernel(
    v_ptr, out_ptr, n_edges, n_entries, SKEW: tl.constexpr, BLOCK: tl.constexpr
):
    """Write tensors out [n_edges, 3, 3] of vectors v [n_edges, 3], and padding up to n_entries.

    Grid: (blocks of entries,).
    """
    # Lanes own entries instead of edges, so that a warp writes contiguous memory.
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    edge = entry // 9
    row, column = entry % 9 // 3, entry % 3

    v0, v1, v2 = _load_vector(v_ptr, edge, edge < n_edges)

    if SKEW:
        axis = 3 - row - column
        u = tl.where(axis == 0, v0, tl.where(axis == 1, v1, v2))
        out = tl.where(row == column, 0.0, tl.where((row + 1) % 3 == column, -u, u))
    else:
        u = tl.where(row == 0, v0, tl.where(row == 1, v1, v2))
        w = tl.where(column == 0, v0, tl.where(column == 1, v1, v2))
        out = u * w - tl.where(row == column, (v0 * v0 + v1 * v1 + v2 * v2) / 3, 0.0)

    tl.store(out_ptr + entry, out, entry < n_entries)


@triton.jit
def _scaled_vector_to_tensor_fwd_kernel(
    v_ptr, factors_ptr, out_ptr, n_elements, channels, SKEW: tl.constexpr, BLOCK: tl.constexpr
):
    """Write tensors out [E, 3, 3, F] of vectors v [E, 3] and factors [E, F].

    Grid: (blocks of the E F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    v0, v1, v2 = _load_vector(v_ptr, index // channels, mask)
    factor = tl.load(factors_ptr + index, mask, other=0.0)

    t = times(factor, _tensor(v0, v1, v2, SKEW))

    store_nine(out_ptr, t, index, mask, n_elements, channels, FULL=True)


@triton.jit
def _vector_to_tensor_bwd_kernel(
    grad_ptr,
    v_ptr,
    factors_ptr,
    grad_v_ptr,
    grad_factors_ptr,
    n_edges,
    channels,
    SKEW: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Write gradients of vectors v [E, 3] and factors [E, F] from those of tensors [E, 3, 3, F].

    Without factors, F is 1. Grid: (blocks of edges,); each program loops over the channels.
    """
    edge = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    edge_mask = edge < n_edges

    u0, u1, u2 = _load_vector(v_ptr, edge, edge_mask)
    v0, v1, v2 = u0[:, None], u1[:, None], u2[:, None]

    sum0 = tl.zeros([BLOCK_E, BLOCK_F], grad_ptr.dtype.element_ty)
    sum1, sum2 = sum0, sum0
    for start in range(0, channels, BLOCK_F):
        channel = start + tl.arange(0, BLOCK_F)
        index = edge[:, None] * channels + channel[None, :]  # [BLOCK_E, BLOCK_F]
        mask = edge_mask[:, None] & (channel < channels)[None, :]

        g = load_nine(grad_ptr, index, mask, n_edges * channels, channels, FULL=True)
        h0, h1, h2 = _tensor_adjoint(g, v0, v1, v2, SKEW)
        if factors_ptr is not None:
            factor = tl.load(factors_ptr + index, mask, other=0.0)
            h0, h1, h2 = factor * h0, factor * h1, factor * h2
            grad_factor = dot(g, _tensor(v0, v1, v2, SKEW))
            tl.store(grad_factors_ptr + index, grad_factor, mask)
        sum0, sum1, sum2 = sum0 + h0, sum1 + h1, sum2 + h2

    grad_v_ptr += edge.to(tl.int64) * 3
    tl.store(grad_v_ptr, tl.sum(sum0, 1), edge_mask)
    tl.store(grad_v_ptr + 1, tl.sum(sum1, 1), edge_mask)
    tl.store(grad_v_ptr + 2, tl.sum(sum2, 1), edge_mask)


def _launch_backward(
    grad: Tensor, v: Tensor, factors: Tensor | None, grad_factors: Tensor | None, skew: bool
) -> Tensor:
    grad, v = grad.contiguous(), v.contiguous()
    grad_v = torch.empty_like(v)
    channels = 1 if factors is None else factors.shape[1]
    block_f = min(triton.next_power_of_2(channels), 256)
    block_e = max(1, block_size(v) // block_f)
    with torch.cuda.device_of(v):
        _vector_to_tensor_bwd_kernel[(triton.cdiv(len(v), block_e),)](
            grad,
            v,
            factors,
            grad_v,
            grad_factors,
            len(v),
            channels,
            SKEW=skew,
            BLOCK_E=block_e,
            BLOCK_F=block_f,
        )
    return grad_v


def _reference(v: Tensor, *rest: Any) -> Tensor:
    *factors, skew = rest
    return (reference.vector_to_skew if skew else reference.vector_to_symmetric)(v, *factors)


@operator("vector_to_tensor_backward", outputs="v", differentiate=by_reference(_reference))
def _vector_to_tensor_backward(grad: Tensor, v: Tensor, skew: bool) -> Tensor:
    """Return gradients of the vectors [E, 3] from those of the tensors [E, 3, 3]."""
    return _launch_backward(grad, v, None, None, skew)


@operator(
    "vector_to_tensor",
    outputs=lambda v, skew: v.new_empty(len(v), 3, 3),  # noqa: ARG005
    gradients=_vector_to_tensor_backward,
)
def _vector_to_tensor(v: Tensor, skew: bool) -> Tensor:
    """Return tensors [E, 3, 3] of vectors [E, 3]."""
    v = v.contiguous()
    n_edges, block = len(v), 1024
    n_entries = 16 * triton.cdiv(9 * n_edges, 16)  # a multiple of 16 allows wide stores
    out = v.new_empty(n_entries)
    with torch.cuda.device_of(v):
        _vector_to_tensor_fwd_kernel[(triton.cdiv(n_entries, block),)](
            v, out, n_edges, n_entries, SKEW=skew, BLOCK=block
        )
    return out[: 9 * n_edges].view(n_edges, 3, 3)


@operator(
    "scaled_vector_to_tensor_backward",
    outputs=("v", "factors"),
    differentiate=by_reference(_reference),
)
def _scaled_vector_to_tensor_backward(
    grad: Tensor, v: Tensor, factors: Tensor, skew: bool
) -> tuple[Tensor, Tensor]:
    """Return gradients of vectors [E, 3] and factors [E, F] from those of tensors [E, 3, 3, F]."""
    factors = factors.contiguous()
    grad_factors = torch.empty_like(factors)
    return _launch_backward(grad, v, factors, grad_factors, skew), grad_factors


def _empty_scaled_tensors(v: Tensor, factors: Tensor, skew: bool) -> Tensor:  # noqa: ARG001
    return v.new_empty(len(v), 3, 3, factors.shape[1])


@operator(
    "scaled_vector_to_tensor",
    outputs=_empty_scaled_tensors,
    gradients=_scaled_vector_to_tensor_backward,
)
def _scaled_vector_to_tensor(v: Tensor, factors: Tensor, skew: bool) -> Tensor:
    """Return tensors [E, 3, 3, F] of vectors [E, 3] and factors [E, F]."""
    v, factors = v.contiguous(), factors.contiguous()
    out = _empty_scaled_tensors(v, factors, skew)
    n_elements, block = factors.numel(), block_size(v)
    with torch.cuda.device_of(v):
        _scaled_vector_to_tensor_fwd_kernel[(triton.cdiv(n_elements, block),)](
            v, factors, out, n_elements, factors.shape[1], SKEW=skew, BLOCK=block
        )
    return out


def vector_to_symmetric(v: Tensor, factors: Tensor | None = None) -> Tensor:
    """Compute symmetric traceless tensors ``v v^T - |v|^2 / 3``, times one factor per channel.

    Parameters
    ----------
    v : [E, 3]
        Vectors; float32 or float64.
    factors : [E, F], optional
        Factors of the channels, of the dtype of the vectors.

    Returns
    -------
    [E, 3, 3], or [E, 3, 3, F] with factors
        Tensors, in the unit of the vectors squared, times that of the factors.

    Raises
    ------
    InputError
        If a shape or dtype is not supported.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> vector_to_symmetric(torch.tensor([[0.0, 0.0, 3.0]], device="cuda"))[0].diagonal().tolist()
    [-3.0, -3.0, 6.0]
    """
    return _checked(v, factors, skew=False)


def vector_to_skew(v: Tensor, factors: Tensor | None = None) -> Tensor:
    """Compute skew tensors ``A`` with ``A u = v x u``, times one factor per channel.

    Parameters, shapes and errors are those of `vector_to_symmetric`. The tensors have the unit of
    the vectors, times that of the factors.

    Examples
    --------
    >>> vector_to_skew(torch.tensor([[1.0, 2.0, 3.0]], device="cuda"))[0, 0].tolist()
    [0.0, -3.0, 2.0]
    """
    return _checked(v, factors, skew=True)


def _checked(v: Tensor, factors: Tensor | None, skew: bool) -> Tensor:
    check_shape("v", v, ("E", 3))
    if factors is None:
        check_floats(v=v)
        n_elements = 9 * len(v)
    else:
        check_shape("factors", factors, (len(v), "F"))
        check_floats(v=v, factors=factors)
        n_elements = factors.numel()
    if n_elements > MAX_ELEMENTS:
        raise InputError(f"v holds {len(v)} vectors, too many for 32-bit indices: split it")
    result: Tensor = (
        _vector_to_tensor(v, skew)
        if factors is None
        else _scaled_vector_to_tensor(v, factors, skew)
    )
    return result
