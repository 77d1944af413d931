"""TensorNet's product of node and message tensors, with norm and division in the same kernel.

    P = c (Y M + M Y)   for O(3)        P = 2 Y M   for SO(3)
    out = P / (|P|_F^2 + 1)

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, section 3. The
charge factor ``c = 1 + 0.1 q``, with the total charge q, is that of TorchMD-NET 3.1. The backward
pass recomputes ``r = 1 / (|P|_F^2 + 1)``:

    gP = r g - 2 r^2 <g, P> P
    gY = c (gP M^T + M^T gP), gM = c (gP Y^T + Y^T gP)   or   gY = 2 gP M^T, gM = 2 Y^T gP

Second derivatives are gradients of ``s = <g, d out>``, for the change of the output under changes
dY and dM of both tensors:

    dP = c (dY M + M dY + Y dM + dM Y)   or   2 (dY M + Y dM)
    d out = r dP - 2 r^2 <P, dP> P       U = ds/d(dP) = gP
    V = ds/dP = -2 r^2 (<g, dP> P + <P, dP> g + <g, P> dP) + 8 r^3 <g, P> <P, dP> P

    gY = c (V M^T + M^T V + U dM^T + dM^T U)   or   2 (V M^T + U dM^T), and so gM
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_floats, check_shape
from mlff_triton.kernels.common.irreps import (
    add,
    block_size,
    combine,
    compose,
    compose_adjoint,
    decompose,
    decompose_adjoint,
    dot,
    has_full_layout,
    launch_elements,
    load_nine,
    matmul,
    store_nine,
    times,
    transpose,
)
from mlff_triton.kernels.common.operators import operator

GROUPS = ("O(3)", "SO(3)")


@triton.jit
def _product(charge_factor, a, b, SYMMETRIC: tl.constexpr):
    """Compute ``c (a b + b a)`` with the charge factor c, or ``2 a b`` without it."""
    if SYMMETRIC:
        p = combine(charge_factor, matmul(a, b), charge_factor, matmul(b, a))
    else:
        p = times(2, matmul(a, b))
    return p


@triton.jit
def _load_charge_factor(charge_factor_ptr, index, mask, channels):
    """Load the charge factor of each element's atom; 1 if there are none."""
    if charge_factor_ptr is None:
        charge_factor = 1
    else:
        charge_factor = tl.load(charge_factor_ptr + index // channels, mask, other=0.0)
    return charge_factor


@triton.jit
def _tensor_product_fwd_kernel(
    y_ptr,
    message_ptr,
    charge_factor_ptr,
    out_ptr,
    n_elements,
    channels,
    FULL: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write products of y and message, all [N, 3, 3, F] if FULL and [9, N, F] if not.

    Charge factors are [N]. Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    y = load_nine(y_ptr, index, mask, n_elements, channels, FULL)
    m = load_nine(message_ptr, index, mask, n_elements, channels, FULL)
    charge_factor = _load_charge_factor(charge_factor_ptr, index, mask, channels)
    if not FULL:
        y, m = compose(y), compose(m)

    p = _product(charge_factor, y, m, SYMMETRIC)
    if NORMALIZE:
        p = times(1 / (dot(p, p) + 1), p)

    if not FULL:
        p = decompose(p)
    store_nine(out_ptr, p, index, mask, n_elements, channels, FULL)


@triton.jit
def _tensor_product_bwd_kernel(
    grad_ptr,
    y_ptr,
    message_ptr,
    charge_factor_ptr,
    grad_y_ptr,
    grad_message_ptr,
    n_elements,
    channels,
    FULL: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write gradients of y and message from those of the products, in the same layout.

    Charge factors are [N]. Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    y = load_nine(y_ptr, index, mask, n_elements, channels, FULL)
    m = load_nine(message_ptr, index, mask, n_elements, channels, FULL)
    g = load_nine(grad_ptr, index, mask, n_elements, channels, FULL)
    charge_factor = _load_charge_factor(charge_factor_ptr, index, mask, channels)
    if not FULL:
        y, m, g = compose(y), compose(m), decompose_adjoint(g)

    if NORMALIZE:
        p = _product(charge_factor, y, m, SYMMETRIC)
        r = 1 / (dot(p, p) + 1)
        g = combine(r, g, -2 * r * r * dot(g, p), p)
    grad_y = _product(charge_factor, g, transpose(m), SYMMETRIC)
    grad_m = _product(charge_factor, transpose(y), g, SYMMETRIC)

    if not FULL:
        grad_y, grad_m = compose_adjoint(grad_y), compose_adjoint(grad_m)
    store_nine(grad_y_ptr, grad_y, index, mask, n_elements, channels, FULL)
    store_nine(grad_message_ptr, grad_m, index, mask, n_elements, channels, FULL)


@triton.jit
def _tensor_product_bwd_bwd_kernel(
    change_y_ptr,
    change_message_ptr,
    grad_ptr,
    y_ptr,
    message_ptr,
    charge_factor_ptr,
    change_ptr,
    grad_y_ptr,
    grad_message_ptr,
    n_elements,
    channels,
    FULL: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the change of the products, and gradients of its dot product with grad.

    The changes of y and message are given, and gradients are by both; all tensors have the same
    layout. Charge factors are [N]. Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    y = load_nine(y_ptr, index, mask, n_elements, channels, FULL)
    m = load_nine(message_ptr, index, mask, n_elements, channels, FULL)
    dy = load_nine(change_y_ptr, index, mask, n_elements, channels, FULL)
    dm = load_nine(change_message_ptr, index, mask, n_elements, channels, FULL)
    g = load_nine(grad_ptr, index, mask, n_elements, channels, FULL)
    charge_factor = _load_charge_factor(charge_factor_ptr, index, mask, channels)
    if not FULL:
        y, m, g = compose(y), compose(m), decompose_adjoint(g)
        dy, dm = compose(dy), compose(dm)

    dp = add(
        _product(charge_factor, dy, m, SYMMETRIC),
        _product(charge_factor, y, dm, SYMMETRIC),
    )
    u = g
    if NORMALIZE:
        p = _product(charge_factor, y, m, SYMMETRIC)
        r = 1 / (dot(p, p) + 1)
        g_p, p_dp, g_dp = dot(g, p), dot(p, dp), dot(g, dp)
        u = combine(r, g, -2 * r * r * g_p, p)
        v = add(
            combine(-2 * r * r * p_dp, g, -2 * r * r * g_p, dp),
            times(2 * r * r * (4 * r * g_p * p_dp - g_dp), p),
        )
        dp = combine(r, dp, -2 * r * r * p_dp, p)
    grad_y = _product(charge_factor, u, transpose(dm), SYMMETRIC)
    grad_m = _product(charge_factor, transpose(dy), u, SYMMETRIC)
    if NORMALIZE:
        grad_y = add(grad_y, _product(charge_factor, v, transpose(m), SYMMETRIC))
        grad_m = add(grad_m, _product(charge_factor, transpose(y), v, SYMMETRIC))

    if not FULL:
        dp, grad_y, grad_m = decompose(dp), compose_adjoint(grad_y), compose_adjoint(grad_m)
    store_nine(change_ptr, dp, index, mask, n_elements, channels, FULL)
    store_nine(grad_y_ptr, grad_y, index, mask, n_elements, channels, FULL)
    store_nine(grad_message_ptr, grad_m, index, mask, n_elements, channels, FULL)


def _options(y: Tensor, group: str, normalize: bool) -> dict[str, bool]:
    return {"FULL": y.ndim == 4, "SYMMETRIC": group == "O(3)", "NORMALIZE": normalize}


@operator("tensor_product_backward_twice", outputs=("grad", "y", "message"))
def _tensor_product_backward_twice(
    change_y: Tensor,
    change_message: Tensor,
    grad: Tensor,
    y: Tensor,
    message: Tensor,
    charge_factor: Tensor | None,
    group: str,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of ``grad`` and both tensors from those of their gradients."""
    inputs = change_y, change_message, grad, y, message, charge_factor
    outputs = y.new_empty(y.shape), y.new_empty(y.shape), y.new_empty(y.shape)
    options = _options(y, group, normalize)
    block = block_size(y) // 2  # more numbers per element than in the other kernels
    launch_elements(_tensor_product_bwd_bwd_kernel, y, inputs, outputs, **options, BLOCK=block)
    return outputs


@operator(
    "tensor_product_backward",
    outputs=("y", "message"),
    gradients=_tensor_product_backward_twice,
)
def _tensor_product_backward(
    grad: Tensor,
    y: Tensor,
    message: Tensor,
    charge_factor: Tensor | None,
    group: str,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Return gradients of both tensors, in their layout, from those of the product."""
    inputs, outputs = (
        (grad, y, message, charge_factor),
        (y.new_empty(y.shape), y.new_empty(y.shape)),
    )
    options = _options(y, group, normalize)
    launch_elements(_tensor_product_bwd_kernel, y, inputs, outputs, **options)
    return outputs


@operator("tensor_product", outputs="y", gradients=_tensor_product_backward)
def _tensor_product(
    y: Tensor, message: Tensor, charge_factor: Tensor | None, group: str, normalize: bool
) -> Tensor:
    """Return the product of two [9, N, F] or [N, 3, 3, F], in their layout."""
    product, options = y.new_empty(y.shape), _options(y, group, normalize)
    inputs = y, message, charge_factor
    launch_elements(_tensor_product_fwd_kernel, y, inputs, (product,), **options)
    return product


def tensor_product(
    y: Tensor,
    message: Tensor,
    charge_factor: Tensor | None = None,
    group: str = "O(3)",
    normalize: bool = True,
) -> Tensor:
    """Multiply node and message tensors and divide by the norm, in one pass; differentiable twice.

    Parameters
    ----------
    y, message : [9, N, F] or [N, 3, 3, F]
        Packed components, as in `mlff_triton.model.irreps`, or full tensors, in the same layout;
        float32 or float64.
    charge_factor : [N], optional
        Factor of the product, ``1 + 0.1 q`` with the total charge q of the atom's system; 1 by
        default; O(3) only. It gets no gradient.
    group : {"O(3)", "SO(3)"}
        ``Y M + M Y``, which conserves parity, or ``2 Y M``.
    normalize : bool
        If True, divide the product ``P`` by ``|P|_F^2 + 1``.

    Returns
    -------
    [9, N, F] or [N, 3, 3, F]
        Product, in the layout of the inputs.

    Raises
    ------
    InputError
        If the group is unknown, a shape or dtype does not fit, or the charge factor is given for
        SO(3) or requires a gradient.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> eye = torch.eye(3, device="cuda").reshape(1, 3, 3, 1)
    >>> tensor_product(eye, eye, normalize=False).flatten().tolist()
    [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0]
    """
    if group not in GROUPS:
        raise InputError(f"group={group!r} is unknown: use one of {', '.join(GROUPS)}")
    full = has_full_layout("y", y)
    check_shape("message", message, y.shape)
    tensors = {"y": y, "message": message}
    if charge_factor is not None:
        check_shape("charge_factor", charge_factor, [y.shape[0 if full else 1]])
        if group == "SO(3)":
            raise InputError("charge_factor belongs to O(3): leave it out for SO(3)")
        if charge_factor.requires_grad:
            raise InputError("charge_factor gets no gradient: detach it, or use backend='torch'")
        tensors["charge_factor"] = charge_factor
    check_floats(**tensors)
    result: Tensor = _tensor_product(y, message, charge_factor, group, normalize)
    return result
