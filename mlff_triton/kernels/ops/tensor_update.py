"""Updates of 3x3 tensors by a change and its square, and their derivatives.

    Y = X + D + c D D

at the end of TensorNet's interaction layers: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, section 3. The charge factor ``c = 1 + 0.1 q``, with the total
charge q, is that of TorchMD-NET 3.1. The gradient of D is

    gD = g + c (g D^T + D^T g)

and second derivatives, which are gradients of ``<d, gD>`` for a change d of D, are

    gg = d + c (d D + D d)      gD = c (g d^T + d^T g)
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_floats, check_shape
from mlff_triton.kernels.common.irreps import (
    add,
    combine,
    compose,
    compose_adjoint,
    decompose,
    decompose_adjoint,
    launch_elements,
    load_nine,
    matmul,
    store_nine,
    times,
    transpose,
)
from mlff_triton.kernels.common.operators import operator


@triton.jit
def _turned(charge_factor, grad, d):
    """Return the components of ``c (g d^T + d^T g)`` for gradients of components and a matrix."""
    g, d_t = decompose_adjoint(grad), transpose(d)
    return compose_adjoint(combine(charge_factor, matmul(g, d_t), charge_factor, matmul(d_t, g)))


@triton.jit
def _tensor_update_fwd_kernel(
    x_ptr, delta_ptr, charge_factor_ptr, out_ptr, n_elements, channels, BLOCK: tl.constexpr
):
    """Write updated tensors out of x and delta, all [9, N, F].

    Charge factors are [N]. Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL=False)
    delta = load_nine(delta_ptr, index, mask, n_elements, channels, FULL=False)
    charge_factor = tl.load(charge_factor_ptr + index // channels, mask, other=0.0)

    d = compose(delta)
    square = decompose(times(charge_factor, matmul(d, d)))

    out = add(add(x, delta), square)
    store_nine(out_ptr, out, index, mask, n_elements, channels, FULL=False)


@triton.jit
def _tensor_update_bwd_kernel(
    grad_ptr,
    delta_ptr,
    charge_factor_ptr,
    grad_delta_ptr,
    n_elements,
    channels,
    BLOCK: tl.constexpr,
):
    """Write the gradients of delta from those of the updated tensors, all [9, N, F].

    Charge factors are [N]. Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    grad = load_nine(grad_ptr, index, mask, n_elements, channels, FULL=False)
    delta = load_nine(delta_ptr, index, mask, n_elements, channels, FULL=False)
    charge_factor = tl.load(charge_factor_ptr + index // channels, mask, other=0.0)

    grad_delta = add(grad, _turned(charge_factor, grad, compose(delta)))

    store_nine(grad_delta_ptr, grad_delta, index, mask, n_elements, channels, FULL=False)


@triton.jit
def _tensor_update_bwd_bwd_kernel(
    change_ptr,
    grad_ptr,
    delta_ptr,
    charge_factor_ptr,
    grad_grad_ptr,
    grad_delta_ptr,
    n_elements,
    channels,
    BLOCK: tl.constexpr,
):
    """Write the gradients of grad and delta, given the change of delta; all are [9, N, F].

    Charge factors are [N]. Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    change = load_nine(change_ptr, index, mask, n_elements, channels, FULL=False)
    grad = load_nine(grad_ptr, index, mask, n_elements, channels, FULL=False)
    delta = load_nine(delta_ptr, index, mask, n_elements, channels, FULL=False)
    charge_factor = tl.load(charge_factor_ptr + index // channels, mask, other=0.0)

    d, e = compose(delta), compose(change)
    moved = decompose(combine(charge_factor, matmul(e, d), charge_factor, matmul(d, e)))

    grad_grad, grad_delta = add(change, moved), _turned(charge_factor, grad, e)
    store_nine(grad_grad_ptr, grad_grad, index, mask, n_elements, channels, FULL=False)
    store_nine(grad_delta_ptr, grad_delta, index, mask, n_elements, channels, FULL=False)


def _launch(
    kernel: Any, tensors: tuple[Tensor, ...], charge_factor: Tensor, n_outputs: int
) -> tuple[Tensor, ...]:
    """Launch a kernel whose tensors and outputs are all [9, N, F]."""
    x = tensors[0]
    outputs = tuple(x.new_empty(x.shape) for _ in range(n_outputs))
    launch_elements(kernel, x, (*tensors, charge_factor), outputs)
    return outputs


@operator("tensor_update_backward_twice", outputs=("grad", "delta"))
def _tensor_update_backward_twice(
    change: Tensor, grad: Tensor, delta: Tensor, charge_factor: Tensor
) -> tuple[Tensor, Tensor]:
    tensors = change, grad, delta
    return _launch(_tensor_update_bwd_bwd_kernel, tensors, charge_factor, 2)  # type: ignore[return-value]


@operator("tensor_update_backward", outputs="grad", gradients=_tensor_update_backward_twice)
def _tensor_update_backward(grad: Tensor, delta: Tensor, charge_factor: Tensor) -> Tensor:
    return _launch(_tensor_update_bwd_kernel, (grad, delta), charge_factor, 1)[0]


@operator(
    "tensor_update",
    outputs="x",
    gradients=lambda grad, *saved: (grad, _tensor_update_backward(grad, *saved)),
    saves=("delta", "charge_factor"),
)
def _tensor_update(x: Tensor, delta: Tensor, charge_factor: Tensor) -> Tensor:
    return _launch(_tensor_update_fwd_kernel, (x, delta), charge_factor, 1)[0]


def tensor_update(x: Tensor, delta: Tensor, charge_factor: Tensor) -> Tensor:
    """Add a change and its square to 3x3 tensors: ``x + D + c D D``; differentiable twice.

    Parameters
    ----------
    x, delta : [9, N, F]
        Tensors and their change, packed as in `mlff_triton.model.irreps`; float32 or float64.
    charge_factor : [N]
        Factor of the square, which gets no gradient.

    Returns
    -------
    [9, N, F]
        Updated tensors.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x = torch.zeros(9, 1, 1, device="cuda")
    >>> delta = torch.tensor([2.0] + 8 * [0.0], device="cuda").view(9, 1, 1)
    >>> tensor_update(x, delta, torch.ones(1, device="cuda"))[0].item()
    6.0
    """
    check_shape("x", x, (9, "N", "F"))
    check_shape("delta", delta, x.shape)
    check_shape("charge_factor", charge_factor, (x.shape[1],))
    check_floats(x=x, delta=delta, charge_factor=charge_factor)
    updated: Tensor = _tensor_update(x, delta, charge_factor)
    return updated
