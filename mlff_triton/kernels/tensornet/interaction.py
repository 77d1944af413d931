"""Linear maps of the three parts and the operations that follow them in TensorNet's layers.

    Y = W_k X                                             linear
    L = W_k X0,  X = s_k L                                embedding
    D = W_k P,   X' = X + D + (1 + 0.1 q) D D             update
    X / (|X|^2 + 1)                                       input of the next layer

and the adjoints, with the total charge q. https://arxiv.org/abs/2306.06482, eqs. 8-12. Each linear
map is one kernel, and the operations after it are a second one. A fused kernel, which keeps nine
components of a tile in registers, was slower at every size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate, activate_derivative
from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.irreps import (
    add,
    combine,
    compose,
    compose_adjoint,
    decompose,
    decompose_adjoint,
    dot_parts,
    inverse_norm,
    load_parts,
    load_tensor,
    matmul,
    norm_gradients,
    normalize_backward,
    scale_parts,
    store_tensor,
    stride_of,
    times,
    transpose,
)
from mlff_triton.kernels.numerics.product import load_split, multiply, operands, scheme_of
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.launch_sizes import linear_blocks, other_rows
from mlff_triton.kernels.tensornet.tile_launch import launch_tiles


@triton.jit
def _tile(n_atoms, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Return a program's atoms [M], channels [N], offsets [M, N], mask [M, 1] and stride."""
    atoms = tl.program_id(0) * M + tl.arange(0, M)
    channels = tl.program_id(1) * N + tl.arange(0, N)
    offset = atoms.to(tl.int64)[:, None] * F + channels[None, :]  # [M, N]
    stride = tl.cast(n_atoms, tl.int64) * F
    return atoms, channels, offset, (atoms < n_atoms)[:, None], stride


@triton.jit
def square_backward(grad, d):
    """Return the gradient of ``d``, nine blocks [M, N], given that of ``decompose(D D)``."""
    g, t = decompose_adjoint(grad), transpose(compose(d))
    return compose_adjoint(add(matmul(g, t), matmul(t, g)))


@triton.jit
def _linear_kernel(
    x_ptr,
    high_ptr,
    low_ptr,
    y_ptr,
    n_atoms,
    n_rows,
    F: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Map one component. Grid: one program per component, M atoms and N of F output channels.

    Reads ``x[9, N, F]`` and the halves of ``weight[3, F, F]``. Writes ``y[9, N, F]``. Unless
    ``n_rows`` is None, ``y`` has that many rows instead.
    """
    wait_for_previous(EARLY_LAUNCH)
    component = tl.program_id(0) % 9
    part = tl.where(component == 0, 0, tl.where(component < 4, 1, 2))
    atoms = tl.program_id(0) // 9 * M + tl.arange(0, M)
    channels = tl.program_id(1) * N + tl.arange(0, N)
    inside = (atoms < n_atoms)[:, None]
    rows = component.to(tl.int64) * stride_of(None, n_atoms, F) + atoms[:, None] * F  # [M, 1]
    weights = (part * F + channels[None, :]) * F  # [1, N]
    y = tl.zeros([M, N], x_ptr.dtype.element_ty)
    for start in range(0, F, K):
        k = start + tl.arange(0, K)
        x = tl.load(x_ptr + rows + k[None, :], inside, other=0.0)
        weight = load_split(high_ptr, low_ptr, weights + k[:, None], PRECISION)
        y = multiply(x, weight, y, PRECISION, LOSS)
    rows = component.to(tl.int64) * stride_of(n_rows, n_atoms, F) + atoms[:, None] * F
    tl.store(y_ptr + rows + channels[None, :], y, inside)


@triton.jit
def _embedding_fwd_kernel(
    mapped_ptr,
    scales_ptr,
    out_ptr,
    inverse_ptr,
    n_atoms,
    F: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Scale and normalize mapped tensors. Grid: one program per M atoms and N channels.

    Reads ``mapped[9, N, F]`` and ``scales[N, 3, F]``. Writes ``out[9, N, F]`` and
    ``inverse[N, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms, channels, offset, inside, stride = _tile(n_atoms, F, M, N)
    mapped = load_tensor(mapped_ptr + offset, stride, inside)
    rows = atoms.to(tl.int64)[:, None] * (3 * F) + channels[None, :]
    z = load_parts(scales_ptr + rows, F, inside)
    scales = activate(z[0], ACTIVATION), activate(z[1], ACTIVATION), activate(z[2], ACTIVATION)
    x = scale_parts(scales, mapped)
    inverse = inverse_norm(x)
    store_tensor(out_ptr + offset, stride, times(inverse, x), inside)
    tl.store(inverse_ptr + offset, inverse, inside)


@triton.jit
def _update_kernel(
    delta_ptr,
    x_ptr,
    charge_factor_ptr,
    out_ptr,
    inverse_ptr,
    n_atoms,
    n_rows,
    F: tl.constexpr,
    NORMALIZE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Add D and its square to tensors. Grid: one program per M atoms and N channels.

    Reads ``delta[9, N, F]``, ``x[9, N, F]`` and ``charge_factor[N]``. Writes ``out[9, N, F]`` and,
    with NORMALIZE, ``inverse[N, F]``. Unless ``n_rows`` is None, ``x`` has that many rows instead.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms, _, offset, inside, stride = _tile(n_atoms, F, M, N)
    delta = load_tensor(delta_ptr + offset, stride, inside)
    charge_factor = tl.load(charge_factor_ptr + atoms, atoms < n_atoms, other=1.0)[:, None]
    full = compose(delta)
    x = combine(1.0, delta, charge_factor, decompose(matmul(full, full)))
    x = add(x, load_tensor(x_ptr + offset, stride_of(n_rows, n_atoms, F), inside))
    if NORMALIZE:
        inverse = inverse_norm(x)
        tl.store(inverse_ptr + offset, inverse, inside)
        x = times(inverse, x)
    store_tensor(out_ptr + offset, stride, x, inside)


@triton.jit
def _product_bwd_kernel(
    grad_ptr,
    y_ptr,
    message_ptr,
    charge_factor_ptr,
    grad_y_ptr,
    grad_message_ptr,
    n_atoms,
    n_rows,
    n_out,
    F: tl.constexpr,
    GROUP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Differentiate the normalized product. Grid: one program per M atoms and N channels.

    Reads ``grad[9, N, F]``, ``y[9, N, F]``, ``message[9, N, F]`` and ``charge_factor[N]``. Writes
    ``grad_y[9, N, F]``, which may be ``grad`` itself, and ``grad_message[9, N, F]``. Unless they
    are None, ``y`` has ``n_rows`` instead, and ``grad_message`` has ``n_out``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms, _, offset, inside, stride = _tile(n_atoms, F, M, N)
    grad = load_tensor(grad_ptr + offset, stride, inside)
    a = compose(load_tensor(y_ptr + offset, stride_of(n_rows, n_atoms, F), inside))
    b = compose(load_tensor(message_ptr + offset, stride, inside))
    if GROUP == "O(3)":
        factor = tl.load(charge_factor_ptr + atoms, atoms < n_atoms, other=1.0)[:, None]
        product = decompose(add(matmul(a, b), matmul(b, a)))
    else:
        factor = 2.0
        product = decompose(matmul(a, b))
    product = times(factor, product)
    grad = times(factor, normalize_backward(grad, product, inverse_norm(product)))
    g = decompose_adjoint(grad)
    at, bt = transpose(a), transpose(b)
    grad_a, grad_b = matmul(g, bt), matmul(at, g)
    if GROUP == "O(3)":
        grad_a, grad_b = add(grad_a, matmul(bt, g)), add(grad_b, matmul(g, at))
    store_tensor(grad_y_ptr + offset, stride, compose_adjoint(grad_a), inside)
    out_stride = stride_of(n_out, n_atoms, F)
    store_tensor(grad_message_ptr + offset, out_stride, compose_adjoint(grad_b), inside)


@triton.jit
def _input_gradient(
    grad_y_ptr, residual_ptr, x_ptr, inverse_ptr, n_atoms, n_rows, offset, atoms, F: tl.constexpr
):
    """Return the gradient of a layer's input before normalization, nine blocks [M, N].

    Unless ``n_rows`` is None, the residual has that many rows, and is zero for all other atoms.
    """
    inside, stride = (atoms < n_atoms)[:, None], tl.cast(n_atoms, tl.int64) * F
    given = inside if n_rows is None else (atoms < n_rows)[:, None]
    grad = load_tensor(grad_y_ptr + offset, stride, inside)
    residual_stride = stride_of(n_rows, n_atoms, F)
    grad = add(grad, load_tensor(residual_ptr + offset, residual_stride, given))
    inverse = tl.load(inverse_ptr + offset, inside, other=1.0)
    x = times(1 / inverse, load_tensor(x_ptr + offset, stride, inside))
    return normalize_backward(grad, x, inverse)


@triton.jit
def _update_bwd_kernel(
    grad_y_ptr,
    residual_ptr,
    x_ptr,
    inverse_ptr,
    delta_ptr,
    charge_factor_ptr,
    grad_x_ptr,
    grad_delta_ptr,
    n_atoms,
    n_rows,
    F: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Differentiate normalization and update. Grid: one program per M atoms and N channels.

    Reads ``grad_y``, ``residual``, ``x`` and ``delta``, all [9, N, F], ``inverse[N, F]`` and
    ``charge_factor[N]``. Writes ``grad_x[9, N, F]``, which may be ``grad_y`` itself, and
    ``grad_delta[9, N, F]``. For ``n_rows``, see `_input_gradient`.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms, _, offset, inside, stride = _tile(n_atoms, F, M, N)
    grad = _input_gradient(
        grad_y_ptr, residual_ptr, x_ptr, inverse_ptr, n_atoms, n_rows, offset, atoms, F
    )
    store_tensor(grad_x_ptr + offset, stride, grad, inside)
    charge_factor = tl.load(charge_factor_ptr + atoms, atoms < n_atoms, other=1.0)[:, None]
    delta = load_tensor(delta_ptr + offset, stride, inside)
    grad = combine(1.0, grad, charge_factor, square_backward(grad, delta))
    store_tensor(grad_delta_ptr + offset, stride, grad, inside)


@triton.jit
def _embedding_bwd_kernel(
    grad_y_ptr,
    residual_ptr,
    x_ptr,
    inverse_ptr,
    mapped_ptr,
    scales_ptr,
    grad_mapped_ptr,
    grad_scales_ptr,
    n_atoms,
    n_rows,
    F: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Differentiate normalization and scaling. Grid: one program per M atoms and N channels.

    Reads ``grad_y``, ``residual``, ``x`` and ``mapped``, all [9, N, F], ``inverse[N, F]`` and
    ``scales[N, 3, F]``. Writes ``grad_mapped[9, N, F]``, which may be ``grad_y`` itself, and
    ``grad_scales[N, 3, F]``. For ``n_rows``, see `_input_gradient`.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms, channels, offset, inside, stride = _tile(n_atoms, F, M, N)
    grad = _input_gradient(
        grad_y_ptr, residual_ptr, x_ptr, inverse_ptr, n_atoms, n_rows, offset, atoms, F
    )
    rows = atoms.to(tl.int64)[:, None] * (3 * F) + channels[None, :]
    z = load_parts(scales_ptr + rows, F, inside)
    scales = activate(z[0], ACTIVATION), activate(z[1], ACTIVATION), activate(z[2], ACTIVATION)
    store_tensor(grad_mapped_ptr + offset, stride, scale_parts(scales, grad), inside)
    sums = dot_parts(grad, load_tensor(mapped_ptr + offset, stride, inside))
    for k in tl.static_range(3):
        grad_z = sums[k] * activate_derivative(z[k], ACTIVATION)
        tl.store(grad_scales_ptr + rows + k * F, grad_z, inside)


@triton.jit
def _embedding_input_bwd_kernel(
    grad_ptr,
    x_ptr,
    grad_norm_ptr,
    grad_x_ptr,
    n_atoms,
    F: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Add the gradients through the norms. Grid: one program per M atoms and N channels.

    Reads ``grad[9, N, F]``, ``x[9, N, F]`` and ``grad_norm[N, F]``. Writes ``grad_x[9, N, F]``,
    which may be ``grad`` itself.
    """
    wait_for_previous(EARLY_LAUNCH)
    _, _, offset, inside, stride = _tile(n_atoms, F, M, N)
    grad = load_tensor(grad_ptr + offset, stride, inside)
    x = load_tensor(x_ptr + offset, stride, inside)
    grad_norm = tl.load(grad_norm_ptr + offset, inside, other=0.0)
    grad = combine(1.0, grad, grad_norm, norm_gradients(x))
    store_tensor(grad_x_ptr + offset, stride, grad, inside)


def linear(x: Tensor, weight: SplitWeight, others: int = 0) -> Tensor:
    """Map each part: x [9, N, F] and weights [3, F, F] -> [9, N + others, F].

    The last rows are not written.
    """
    check_device(x)
    n_atoms, channels = x.shape[1:]
    y = x.new_empty(9, n_atoms + others, channels)
    blocks = linear_blocks(x)
    grid = (9 * triton.cdiv(n_atoms, blocks.atoms), channels // blocks.channels)
    with torch.cuda.device_of(x):
        _linear_kernel[grid](
            x,
            *operands(weight),
            y,
            n_atoms,
            other_rows(n_atoms + others, n_atoms),
            F=channels,
            M=blocks.atoms,
            N=blocks.channels,
            K=blocks.inner,
            PRECISION=scheme_of(weight, x),
            LOSS=loss_of(x).tf32_product,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(x),
        )
    return y


def embed(
    x: Tensor, weight: SplitWeight, scales: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Map and scale each part, and normalize the tensors.

    Parameters
    ----------
    x : [9, N, F]
        Sums over neighbors.
    weight : SplitWeight [3, F, F]
        Linear maps.
    scales : [N, 3, F]
        Factors of the parts, before their activation.
    activation : str
        Name of the activation.

    Returns
    -------
    mapped, normalized : [9, N, F]
        Tensors before scaling, and after scaling and normalization.
    inverse : [N, F]
        ``1 / (|X|^2 + 1)`` of the scaled tensors.
    """
    mapped = linear(x, weight)
    out, inverse = torch.empty_like(x), torch.empty_like(x[0])
    launch_tiles(_embedding_fwd_kernel, mapped, scales, out, inverse, ACTIVATION=activation)
    return mapped, out, inverse


def update(
    p: Tensor, weight: SplitWeight, x: Tensor, charge_factor: Tensor, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Update tensors to ``X + D + (1 + 0.1 q) D D`` with ``D = W P``, at the end of a layer.

    Parameters
    ----------
    p : [9, N, F]
        Normalized products, of the first atoms if there are more.
    weight : SplitWeight [3, F, F]
        Linear maps.
    x : [9, M, F]
        Normalized input of the layer.
    charge_factor : [M]
        ``1 + 0.1 q``.
    normalize : bool
        If True, normalize the result for another layer.

    Returns
    -------
    delta, x : [9, N, F]
        D and the updated tensors.
    inverse : [N, F]
        ``1 / (|X|^2 + 1)`` of the updated tensors; uninitialized unless ``normalize``.
    """
    delta = linear(p, weight)
    n_rows = other_rows(x.shape[1], p.shape[1])
    out, inverse = torch.empty_like(p), torch.empty_like(p[0])
    given = delta, x, charge_factor, out, inverse
    launch_tiles(_update_kernel, *given, n_rows=n_rows, NORMALIZE=normalize)
    return delta, out, inverse


def product_backward(
    grad_delta: Tensor,
    weight: SplitWeight,
    y: Tensor,
    message: Tensor,
    charge_factor: Tensor,
    group: str,
    others: int = 0,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients [9, N, F] of both factors of the product, given those of D.

    There may be more tensors ``y[9, M, F]``, whose first ones are the factors. The gradients of
    messages have more rows, ``others``, which are not written.
    """
    grad_y = linear(grad_delta, weight)
    _, n_atoms, channels = message.shape
    grad_message = message.new_empty(9, n_atoms + others, channels)
    # In place: each element is read and written by the same thread.
    given = grad_y, y, message, charge_factor, grad_y, grad_message
    n_rows, n_out = (other_rows(rows.shape[1], n_atoms) for rows in (y, grad_message))
    launch_tiles(_product_bwd_kernel, *given, n_rows=n_rows, n_out=n_out, GROUP=group)
    return grad_y, grad_message


def update_backward(
    grad_y: Tensor,
    weight: SplitWeight,
    residual: Tensor,
    x: Tensor,
    inverse: Tensor,
    delta: Tensor,
    charge_factor: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients [9, N, F] of a layer's input, and of the D of the layer before.

    The input is the one before normalization.

    Parameters
    ----------
    grad_y : [9, N, F]
        Gradients of Y.
    weight : SplitWeight [3, F, F]
        Adjoint of the maps that made Y.
    residual : [9, M, F]
        Gradients of the input that do not pass through Y; zero for all but the first M atoms.
    x, inverse : [9, N, F], [N, F]
        Normalized input, and its ``1 / (|X|^2 + 1)``.
    delta : [9, N, F]
        D of the layer before.
    charge_factor : [N]
        ``1 + 0.1 q``.
    """
    grad_x = linear(grad_y, weight)
    grad_delta = torch.empty_like(x)
    given = grad_x, residual, x, inverse, delta, charge_factor
    n_rows = other_rows(residual.shape[1], x.shape[1])
    launch_tiles(_update_bwd_kernel, *given, grad_x, grad_delta, n_rows=n_rows)  # in place
    return grad_x, grad_delta


def embed_backward(
    grad_y: Tensor,
    weight: SplitWeight,
    residual: Tensor,
    x: Tensor,
    inverse: Tensor,
    mapped: Tensor,
    scales: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the embedding, as `update_backward` does those of a layer.

    Returns
    -------
    grad_mapped : [9, N, F]
        Gradients of the mapped tensors.
    grad_scales : [N, 3, F]
        Gradients of the factors, before their activation.
    """
    grad_mapped = linear(grad_y, weight)
    grad_scales = torch.empty_like(scales)
    given = grad_mapped, residual, x, inverse, mapped, scales
    outputs = grad_mapped, grad_scales  # the first one in place
    n_rows = other_rows(residual.shape[1], x.shape[1])
    launch_tiles(_embedding_bwd_kernel, *given, *outputs, n_rows=n_rows, ACTIVATION=activation)
    return grad_mapped, grad_scales


def embed_input_backward(grad: Tensor, weight: SplitWeight, x: Tensor, grad_norm: Tensor) -> Tensor:
    """Compute the gradients [9, N, F] of the sums over neighbors, through their map and norms."""
    grad_x = linear(grad, weight)
    launch_tiles(_embedding_input_bwd_kernel, grad_x, x, grad_norm, grad_x)  # in place
    return grad_x
