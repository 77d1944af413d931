"""Tensors divided by their squared norms plus one, and their derivatives.

    Y = X r      r = 1 / (|X|_F^2 + 1)

as at the beginning of TensorNet's interaction layers: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, section 3. With the gradient n(X) of the squared norm, which is
linear in X, and products of components,

    gX = r g - r^2 (g . X) n(X)

Second derivatives are gradients of ``g . dY``, with the change of Y for a change d of X:

    dY = r d - r^2 (n(X) . d) X
    gX = r^2 (2 r (n(X) . d) (g . X) - g . d) n(X) - r^2 (g . X) n(d) - r^2 (n(X) . d) g
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_floats
from mlff_triton.kernels.common.irreps import (
    add,
    combine,
    dot,
    has_full_layout,
    inverse_norm,
    launch_elements,
    load_nine,
    norm_gradients,
    normalize_backward,
    store_nine,
    times,
)
from mlff_triton.kernels.common.operators import operator


@triton.jit
def _normalized_tensors_fwd_kernel(x_ptr, y_ptr, n_elements, channels, BLOCK: tl.constexpr):
    """Write y of x, both [9, N, F]. Grid: (blocks of the N F elements,)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL=False)

    y = times(inverse_norm(x), x)

    store_nine(y_ptr, y, index, mask, n_elements, channels, FULL=False)


@triton.jit
def _normalized_tensors_bwd_kernel(
    grad_ptr, x_ptr, grad_x_ptr, n_elements, channels, BLOCK: tl.constexpr
):
    """Write gradients of x from those of y, all [9, N, F]. Grid: (blocks of the N F elements,)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    grad = load_nine(grad_ptr, index, mask, n_elements, channels, FULL=False)
    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL=False)

    grad_x = normalize_backward(grad, x, inverse_norm(x))

    store_nine(grad_x_ptr, grad_x, index, mask, n_elements, channels, FULL=False)


@triton.jit
def _normalized_tensors_bwd_bwd_kernel(
    change_ptr, grad_ptr, x_ptr, change_y_ptr, grad_x_ptr, n_elements, channels, BLOCK: tl.constexpr
):
    """Write the change of y for that of x, and the gradient of its product with grad by x.

    All are [9, N, F]. Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    d = load_nine(change_ptr, index, mask, n_elements, channels, FULL=False)
    grad = load_nine(grad_ptr, index, mask, n_elements, channels, FULL=False)
    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL=False)

    r, slope = inverse_norm(x), norm_gradients(x)
    r_r, along, growth = r * r, dot(grad, x), dot(slope, d)
    change_y = combine(r, d, -r_r * growth, x)
    grad_x = add(
        times(r_r * (2 * r * growth * along - dot(grad, d)), slope),
        combine(-r_r * along, norm_gradients(d), -r_r * growth, grad),
    )

    store_nine(change_y_ptr, change_y, index, mask, n_elements, channels, FULL=False)
    store_nine(grad_x_ptr, grad_x, index, mask, n_elements, channels, FULL=False)


def _launch(kernel: Any, inputs: tuple[Tensor, ...], n_outputs: int) -> tuple[Tensor, ...]:
    """Launch a kernel whose inputs and outputs are all [9, N, F]."""
    outputs = tuple(inputs[0].new_empty(inputs[0].shape) for _ in range(n_outputs))
    launch_elements(kernel, inputs[0], inputs, outputs)
    return outputs


@operator("normalized_tensors_backward_twice", outputs=("grad", "x"))
def _normalized_tensors_backward_twice(
    change: Tensor, grad: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    return _launch(_normalized_tensors_bwd_bwd_kernel, (change, grad, x), 2)  # type: ignore[return-value]


@operator("normalized_tensors_backward", outputs="x", gradients=_normalized_tensors_backward_twice)
def _normalized_tensors_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _launch(_normalized_tensors_bwd_kernel, (grad, x), 1)[0]


@operator("normalized_tensors", outputs="x", gradients=_normalized_tensors_backward)
def _normalized_tensors(x: Tensor) -> Tensor:
    return _launch(_normalized_tensors_fwd_kernel, (x,), 1)[0]


def normalized_tensors(x: Tensor) -> Tensor:
    """Divide 3x3 tensors by their squared Frobenius norms plus one; differentiable twice.

    Parameters
    ----------
    x : [9, N, F]
        Packed components, as in `mlff_triton.model.irreps`; float32 or float64.

    Returns
    -------
    [9, N, F]
        Normalized tensors.

    Raises
    ------
    InputError
        If the shape or the dtype is not supported.
    BackendError
        If the tensor is not on a GPU.

    Examples
    --------
    >>> x = torch.ones(9, 2, 4, device="cuda")
    >>> (22 * normalized_tensors(x))[0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if has_full_layout("x", x):
        raise InputError(f"x has the shape {list(x.shape)} instead of [9, N, F]")
    check_floats(x=x)
    result: Tensor = _normalized_tensors(x)
    return result
