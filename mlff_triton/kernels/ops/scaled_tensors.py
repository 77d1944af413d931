"""Parts of packed 3x3 tensors times one factor per atom, channel and part, and derivatives.

    Y = (s_1 I, s_2 A, s_3 S)

as in TensorNet's embedding: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, section 3. With ``<g, x>`` the product of components, summed over
those of a part,

    gx = s g      gs = <g, x>

Second derivatives are gradients of ``<dx, gx> + <ds, gs>`` for changes dx and ds:

    gg = s dx + ds x      gx = ds g      gs = <g, dx>
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_floats, check_shape
from mlff_triton.kernels.common.irreps import (
    add,
    dot_parts,
    has_full_layout,
    launch_elements,
    load_nine,
    load_parts,
    scale_parts,
    store_nine,
    store_parts,
)
from mlff_triton.kernels.common.operators import operator


@triton.jit
def _part_offsets(index, channels):
    """Return the offsets of elements ``index = n F + f`` in the first of three parts [N, 3, F]."""
    return index + (index // channels).to(tl.int64) * 2 * channels


@triton.jit
def _scaled_tensors_fwd_kernel(x_ptr, scales_ptr, y_ptr, n_elements, channels, BLOCK: tl.constexpr):
    """Write y of x, both [9, N, F], with scales [N, 3, F]. Grid: (blocks of N F elements,)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL=False)
    s = load_parts(scales_ptr + _part_offsets(index, channels), channels, mask)

    store_nine(y_ptr, scale_parts(s, x), index, mask, n_elements, channels, FULL=False)


@triton.jit
def _scaled_tensors_bwd_kernel(
    grad_ptr,
    x_ptr,
    scales_ptr,
    grad_x_ptr,
    grad_scales_ptr,
    n_elements,
    channels,
    BLOCK: tl.constexpr,
):
    """Write gradients of x [9, N, F] and scales [N, 3, F]. Grid: (blocks of N F elements,)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    part = _part_offsets(index, channels)

    grad = load_nine(grad_ptr, index, mask, n_elements, channels, FULL=False)
    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL=False)
    s = load_parts(scales_ptr + part, channels, mask)

    store_nine(grad_x_ptr, scale_parts(s, grad), index, mask, n_elements, channels, FULL=False)
    store_parts(grad_scales_ptr + part, channels, dot_parts(grad, x), mask)


@triton.jit
def _scaled_tensors_bwd_bwd_kernel(
    change_ptr,
    change_scales_ptr,
    grad_ptr,
    x_ptr,
    scales_ptr,
    grad_grad_ptr,
    grad_x_ptr,
    grad_scales_ptr,
    n_elements,
    channels,
    BLOCK: tl.constexpr,
):
    """Write gradients of grad and x [9, N, F], and of scales [N, 3, F], given changes of both.

    Grid: (blocks of N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    part = _part_offsets(index, channels)

    dx = load_nine(change_ptr, index, mask, n_elements, channels, FULL=False)
    ds = load_parts(change_scales_ptr + part, channels, mask)
    grad = load_nine(grad_ptr, index, mask, n_elements, channels, FULL=False)
    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL=False)
    s = load_parts(scales_ptr + part, channels, mask)

    grad_grad = add(scale_parts(s, dx), scale_parts(ds, x))

    store_nine(grad_grad_ptr, grad_grad, index, mask, n_elements, channels, FULL=False)
    store_nine(grad_x_ptr, scale_parts(ds, grad), index, mask, n_elements, channels, FULL=False)
    store_parts(grad_scales_ptr + part, channels, dot_parts(grad, dx), mask)


@operator("scaled_tensors_backward_twice", outputs=("grad", "x", "scales"))
def _scaled_tensors_backward_twice(
    change: Tensor, change_scales: Tensor, grad: Tensor, x: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = x.new_empty(x.shape), x.new_empty(x.shape), scales.new_empty(scales.shape)
    inputs = change, change_scales, grad, x, scales
    launch_elements(_scaled_tensors_bwd_bwd_kernel, x, inputs, outputs)
    return outputs


@operator(
    "scaled_tensors_backward", outputs=("x", "scales"), gradients=_scaled_tensors_backward_twice
)
def _scaled_tensors_backward(grad: Tensor, x: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    outputs = x.new_empty(x.shape), scales.new_empty(scales.shape)
    launch_elements(_scaled_tensors_bwd_kernel, x, (grad, x, scales), outputs)
    return outputs


@operator("scaled_tensors", outputs="x", gradients=_scaled_tensors_backward)
def _scaled_tensors(x: Tensor, scales: Tensor) -> Tensor:
    y = x.new_empty(x.shape)
    launch_elements(_scaled_tensors_fwd_kernel, x, (x, scales), (y,))
    return y


def scaled_tensors(x: Tensor, scales: Tensor) -> Tensor:
    """Multiply each of the three parts of 3x3 tensors by a factor; differentiable twice.

    Parameters
    ----------
    x : [9, N, F]
        Packed components, as in `mlff_triton.model.irreps`; float32 or float64.
    scales : [N, 3, F]
        Factors of the identity, the skew and the symmetric part.

    Returns
    -------
    [9, N, F]
        Scaled tensors.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x, scales = torch.ones(9, 1, 1, device="cuda"), torch.ones(1, 3, 1, device="cuda")
    >>> scaled_tensors(x, 2 * scales).flatten().tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    """
    if has_full_layout("x", x):
        raise InputError(f"x has the shape {list(x.shape)} instead of [9, N, F]")
    check_shape("scales", scales, (x.shape[1], 3, x.shape[2]))
    check_floats(x=x, scales=scales)
    scaled: Tensor = _scaled_tensors(x, scales)
    return scaled
