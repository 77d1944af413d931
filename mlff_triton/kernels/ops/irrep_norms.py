"""Squared norms of the three parts of 3x3 tensors.

    (3 I^2, 2 |a|^2, |S|_F^2)    of    X = I 1 + A(a) + S

the invariants in the readout of TensorNet: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482. Their gradients with respect to X are 2 I 1, 2 A and 2 S. These
are linear in X, so the second derivatives for a change of X are gradients at that change.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_floats
from mlff_triton.kernels.common.irreps import (
    compose,
    compose_adjoint,
    decompose,
    has_full_layout,
    launch_elements,
    load_nine,
    load_parts,
    part_norms,
    part_norms_change,
    scale_parts,
    store_nine,
    store_parts,
)
from mlff_triton.kernels.common.operators import operator


@triton.jit
def _irrep_norms_fwd_kernel(
    x_ptr, out_ptr, n_elements, channels, FULL: tl.constexpr, BLOCK: tl.constexpr
):
    """Write norms out [N, 3, F] of x, which is [N, 3, 3, F] if FULL and [9, N, F] if not.

    Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    out_ptr += index + (index // channels).to(tl.int64) * 2 * channels  # [N, 3, F]

    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL)
    if FULL:
        x = decompose(x)

    store_parts(out_ptr, channels, part_norms(x), mask)


@triton.jit
def _gradient(grad, x, FULL: tl.constexpr):
    """Return the gradient of x, in its layout, from those of the three norms."""
    if FULL:
        x = decompose(x)
    grad_x = compose(scale_parts((2 * grad[0], 2 * grad[1], 2 * grad[2]), x))
    if not FULL:
        grad_x = compose_adjoint(grad_x)
    return grad_x


@triton.jit
def _irrep_norms_bwd_kernel(
    grad_ptr, x_ptr, grad_x_ptr, n_elements, channels, FULL: tl.constexpr, BLOCK: tl.constexpr
):
    """Write gradients of x, in the layout of x, from those of the norms [N, 3, F].

    Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    grad_ptr += index + (index // channels).to(tl.int64) * 2 * channels  # [N, 3, F]

    grad = load_parts(grad_ptr, channels, mask)
    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL)

    grad_x = _gradient(grad, x, FULL)

    store_nine(grad_x_ptr, grad_x, index, mask, n_elements, channels, FULL)


@triton.jit
def _irrep_norms_bwd_bwd_kernel(
    change_ptr,
    grad_ptr,
    x_ptr,
    grad_grad_ptr,
    grad_x_ptr,
    n_elements,
    channels,
    FULL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the changes of the norms [N, 3, F], and the gradient of their product with grad.

    The given change of x and the gradient have the layout of x. Grid: (blocks of the N F
    elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    norms = index + (index // channels).to(tl.int64) * 2 * channels  # [N, 3, F]

    grad = load_parts(grad_ptr + norms, channels, mask)
    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL)
    change = load_nine(change_ptr, index, mask, n_elements, channels, FULL)

    grad_x = _gradient(grad, change, FULL)
    if FULL:
        x, change = decompose(x), decompose(change)

    store_parts(grad_grad_ptr + norms, channels, part_norms_change(x, change), mask)
    store_nine(grad_x_ptr, grad_x, index, mask, n_elements, channels, FULL)


@operator("irrep_norms_backward_twice", outputs=("grad", "x"))
def _irrep_norms_backward_twice(change: Tensor, grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients of ``grad`` [N, 3 F] and x from those of the gradient of x."""
    outputs = grad.new_empty(grad.shape), x.new_empty(x.shape)
    inputs = change, grad, x
    launch_elements(_irrep_norms_bwd_bwd_kernel, x, inputs, outputs, FULL=x.ndim == 4)
    return outputs


@operator("irrep_norms_backward", outputs="x", gradients=_irrep_norms_backward_twice)
def _irrep_norms_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return gradients of x, in the layout of x, from those of the norms, [N, 3 F]."""
    grad_x = x.new_empty(x.shape)
    launch_elements(_irrep_norms_bwd_kernel, x, (grad, x), (grad_x,), FULL=x.ndim == 4)
    return grad_x


def _empty_norms(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0 if x.ndim == 4 else 1], 3 * x.shape[-1])


@operator("irrep_norms", outputs=_empty_norms, gradients=_irrep_norms_backward)
def _irrep_norms(x: Tensor) -> Tensor:
    """Return the norms [N, 3 F]."""
    norms = _empty_norms(x)
    launch_elements(_irrep_norms_fwd_kernel, x, (x,), (norms,), FULL=x.ndim == 4)
    return norms


def irrep_norms(x: Tensor) -> Tensor:
    """Compute squared Frobenius norms of the three parts of 3x3 tensors, in one pass.

    Parameters
    ----------
    x : [9, N, F] or [N, 3, 3, F]
        Packed components, as in `mlff_triton.model.irreps`, or full tensors; float32 or float64.

    Returns
    -------
    [N, 3 F]
        ``3 I^2``, ``2 |a|^2`` and ``|S|_F^2``, concatenated, in the unit of x squared.

    Raises
    ------
    InputError
        If the shape or the dtype is not supported.
    BackendError
        If the tensor is not on a GPU.

    Examples
    --------
    >>> x = torch.ones(9, 2, 4, device="cuda")
    >>> irrep_norms(x)[0, ::4].tolist()
    [3.0, 6.0, 12.0]
    """
    has_full_layout("x", x)
    check_floats(x=x)
    result: Tensor = _irrep_norms(x)
    return result
