"""Charges from the invariants of tensors, and the gradients of these tensors.

    n = (I, 2 |a|^2, |S|^2)      z1 = W1 LayerNorm(n) + b1      z2 = W2 act(z1) + b2
    (c, f) = W3 act(z2) + b3

``ChargePredict`` in TorchMD-NET 3.1 (``torchmdnet/models/tensornet2.py``). Tensors are those before
the normalization at the beginning of the next layer. So in the backward pass, the gradients by
invariants come after those of the normalization, and before those of the update that made the
tensors.
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
    dot_parts,
    load_parts,
    load_tensor,
    norm_gradients,
    normalize_backward,
    scale_parts,
    store_tensor,
    times,
)
from mlff_triton.kernels.numerics.product import load_split, multiply, operands, scheme_of
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.tensornet.interaction import square_backward
from mlff_triton.kernels.tensornet.readout import map_invariants, map_invariants_backward
from mlff_triton.kernels.tensornet.tile_launch import launch_tiles
from mlff_triton.kernels.tensornet2.launch_sizes import network_blocks
from mlff_triton.kernels.types.charge_network import ChargeNetwork


@triton.jit
def _prediction_fwd_kernel(
    z1_ptr,
    second_high_ptr,
    second_low_ptr,
    second_bias_ptr,
    third_high_ptr,
    third_low_ptr,
    third_bias_ptr,
    z2_ptr,
    predicted_ptr,
    n_atoms,
    n_outputs,
    F: tl.constexpr,
    P: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Apply the last two maps. Grid: one program per M atoms.

    Reads ``z1[N, F]`` and the weights of `ChargeNetwork`. Writes ``z2[N, F]`` and
    ``predicted[N, n_outputs]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    inside = atoms < n_atoms
    channel, output = tl.arange(0, F), tl.arange(0, P)
    dtype: tl.constexpr = z1_ptr.dtype.element_ty
    z2 = tl.zeros([M, F], dtype) + tl.load(second_bias_ptr + channel)[None, :]
    for start in range(0, F, K):
        k = start + tl.arange(0, K)
        h1 = activate(tl.load(z1_ptr + atoms * F + k[None, :], inside, other=0.0), ACTIVATION)
        weights = channel[None, :] * F + k[:, None]  # [K, F]
        second = load_split(second_high_ptr, second_low_ptr, weights, PRECISION)
        z2 = multiply(h1, second, z2, PRECISION, LOSS)
    tl.store(z2_ptr + atoms * F + channel[None, :], z2, inside)

    predicted = tl.zeros([M, P], dtype) + tl.load(third_bias_ptr + output)[None, :]
    weights = output[None, :] * F + channel[:, None]  # [F, P]
    h2 = activate(z2, ACTIVATION)
    third = load_split(third_high_ptr, third_low_ptr, weights, PRECISION)
    predicted = multiply(h2, third, predicted, PRECISION, LOSS)
    out = predicted_ptr + atoms * n_outputs + output[None, :]
    tl.store(out, predicted, inside & (output < n_outputs)[None, :])


@triton.jit
def _prediction_bwd_kernel(
    grad_ptr,
    third_high_ptr,
    third_low_ptr,
    second_high_ptr,
    second_low_ptr,
    z1_ptr,
    z2_ptr,
    grad_z1_ptr,
    n_atoms,
    n_outputs,
    F: tl.constexpr,
    P: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute the gradients of z1. Grid: one program per M atoms.

    Reads ``grad[N, n_outputs]``, ``z1[N, F]``, ``z2[N, F]`` and the halves of the adjoints
    ``third[F, P]`` and ``second[F, F]``. Writes ``grad_z1[N, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    inside = atoms < n_atoms
    channel, output = tl.arange(0, F), tl.arange(0, P)
    dtype: tl.constexpr = z1_ptr.dtype.element_ty
    mask = inside & (output < n_outputs)[None, :]
    grad = tl.load(grad_ptr + atoms * n_outputs + output[None, :], mask, other=0.0)
    weights = channel[None, :] * P + output[:, None]  # [P, F]
    grad_z2 = tl.zeros([M, F], dtype)
    third = load_split(third_high_ptr, third_low_ptr, weights, PRECISION)
    grad_z2 = multiply(grad, third, grad_z2, PRECISION, LOSS)
    z2 = tl.load(z2_ptr + atoms * F + channel[None, :], inside, other=0.0)
    grad_z2 *= activate_derivative(z2, ACTIVATION)
    for start in range(0, F, K):
        k = start + tl.arange(0, K)
        grad_z1 = tl.zeros([M, K], dtype)
        part = k[None, :] * F + channel[:, None]  # [F, K]
        second = load_split(second_high_ptr, second_low_ptr, part, PRECISION)
        grad_z1 = multiply(grad_z2, second, grad_z1, PRECISION, LOSS)
        z1 = tl.load(z1_ptr + atoms * F + k[None, :], inside, other=0.0)
        grad_z1 *= activate_derivative(z1, ACTIVATION)
        tl.store(grad_z1_ptr + atoms * F + k[None, :], grad_z1, inside)


@triton.jit
def _tensor_gradients_kernel(
    grad_ptr,
    residual_ptr,
    x_ptr,
    inverse_ptr,
    factors_ptr,
    delta_ptr,
    grad_x_ptr,
    grad_delta_ptr,
    n_atoms,
    F: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Add gradients by invariants. Grid: one program per M atoms and N channels.

    Reads ``grad`` and ``x``, [9, N, F], ``factors[N, 3, F]``, and unless they are None,
    ``residual[9, N, F]``, ``inverse[N, F]`` and ``delta[9, N, F]``. Writes ``grad_x[9, N, F]``,
    which may be ``grad`` itself, and with ``delta``, ``grad_delta[9, N, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    channels = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    offset, inside = atoms * F + channels, atoms < n_atoms
    stride = tl.cast(n_atoms, tl.int64) * F
    grad = load_tensor(grad_ptr + offset, stride, inside)
    if residual_ptr is not None:
        grad = add(grad, load_tensor(residual_ptr + offset, stride, inside))
    x = load_tensor(x_ptr + offset, stride, inside)
    if inverse_ptr is not None:
        inverse = tl.load(inverse_ptr + offset, inside, other=1.0)
        x = times(1 / inverse, x)
        grad = normalize_backward(grad, x, inverse)
    factors = load_parts(factors_ptr + atoms * (3 * F) + channels, F, inside)
    _, a0, a1, a2, s00, s01, s02, s11, s12 = scale_parts(factors, norm_gradients(x))
    grad = add(grad, (factors[0], a0, a1, a2, s00, s01, s02, s11, s12))
    store_tensor(grad_x_ptr + offset, stride, grad, inside)
    if delta_ptr is not None:
        delta = load_tensor(delta_ptr + offset, stride, inside)
        grad = add(grad, square_backward(grad, delta))
        store_tensor(grad_delta_ptr + offset, stride, grad, inside)


@triton.jit
def _scale_gradients_kernel(
    grad_ptr,
    mapped_ptr,
    scales_ptr,
    grad_mapped_ptr,
    grad_scales_ptr,
    n_atoms,
    F: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Differentiate the scaling of parts. Grid: one program per M atoms and N channels.

    Reads ``grad`` and ``mapped``, [9, N, F], and ``scales[N, 3, F]``. Writes
    ``grad_mapped[9, N, F]``, which may be ``grad`` itself, and ``grad_scales[N, 3, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    channels = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    offset, inside = atoms * F + channels, atoms < n_atoms
    stride = tl.cast(n_atoms, tl.int64) * F
    rows = atoms * (3 * F) + channels
    grad = load_tensor(grad_ptr + offset, stride, inside)
    sums = dot_parts(grad, load_tensor(mapped_ptr + offset, stride, inside))
    z = load_parts(scales_ptr + rows, F, inside)
    scales = activate(z[0], ACTIVATION), activate(z[1], ACTIVATION), activate(z[2], ACTIVATION)
    store_tensor(grad_mapped_ptr + offset, stride, scale_parts(scales, grad), inside)
    for k in tl.static_range(3):
        grad_z = sums[k] * activate_derivative(z[k], ACTIVATION)
        tl.store(grad_scales_ptr + rows + k * F, grad_z, inside)


def predict_charges(
    x: Tensor, inverse: Tensor | None, network: ChargeNetwork
) -> tuple[Tensor, Tensor, Tensor]:
    """Predict the charges of atoms before their equilibration.

    Parameters
    ----------
    x : [9, N, F]
        Tensors; normalized ones if ``inverse`` is given.
    inverse : [N, F], optional
        Factors by which the tensors were normalized.
    network : ChargeNetwork
        Network of the charges.

    Returns
    -------
    predicted : [N, 2 Q]
        Charges and weights, for `mlff_triton.kernels.tensornet2.equilibration.equilibrate`.
    z1, z2 : [N, F]
        Hidden values before their activation, for `predict_charges_backward`.
    """
    check_device(x)
    n = network
    z1 = map_invariants(x, inverse, n.gain, n.shift, n.first, n.first_bias, trace=True)
    n_atoms, channels = z1.shape
    z2, predicted = torch.empty_like(z1), z1.new_empty(n_atoms, n.n_outputs)
    blocks = network_blocks(z1)
    with torch.cuda.device_of(x):
        _prediction_fwd_kernel[(triton.cdiv(n_atoms, blocks.atoms),)](
            z1,
            *operands(n.second),
            n.second_bias,
            *operands(n.third),
            n.third_bias,
            z2,
            predicted,
            n_atoms,
            n.n_outputs,
            F=channels,
            P=len(n.third_bias),
            ACTIVATION=n.activation,
            M=blocks.atoms,
            K=blocks.inner,
            PRECISION=scheme_of(n.second, z1),
            LOSS=loss_of(z1).tf32_product,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(x),
        )
    return predicted, z1, z2


def predict_charges_backward(
    grad: Tensor, x: Tensor, inverse: Tensor | None, network: ChargeNetwork, z1: Tensor, z2: Tensor
) -> Tensor:
    """Compute the gradients [N, 3, F] of the invariants.

    Parameters
    ----------
    grad : [N, 2 Q]
        Gradients of the predictions.
    x, inverse, network
        As for `predict_charges`.
    z1, z2 : [N, F]
        From `predict_charges`.
    """
    check_device(grad)
    n = network
    n_atoms, channels = z1.shape
    grad_z1, blocks = torch.empty_like(z1), network_blocks(z1)
    with torch.cuda.device_of(x):
        _prediction_bwd_kernel[(triton.cdiv(n_atoms, blocks.atoms),)](
            grad,
            *operands(n.third_adjoint),
            *operands(n.second_adjoint),
            z1,
            z2,
            grad_z1,
            n_atoms,
            n.n_outputs,
            F=channels,
            P=len(n.third_bias),
            ACTIVATION=n.activation,
            M=blocks.atoms,
            K=blocks.inner,
            PRECISION=scheme_of(n.second, z1),
            LOSS=loss_of(z1).tf32_product,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(x),
        )
    return map_invariants_backward(grad_z1, x, inverse, n.gain, n.first_adjoint, trace=True)


def tensor_gradients(
    grad: Tensor,
    residual: Tensor | None,
    x: Tensor,
    inverse: Tensor | None,
    factors: Tensor,
    delta: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a layer's tensors, and of the update D that made them.

    Parameters
    ----------
    grad : [9, N, F]
        Gradients of ``x``. Overwritten by the result.
    residual : [9, N, F], optional
        Further gradients of ``x``.
    x : [9, N, F]
        Tensors; normalized ones if ``inverse`` is given.
    inverse : [N, F], optional
        Factors by which the tensors were normalized.
    factors : [N, 3, F]
        Gradients of the invariants, from `predict_charges_backward`.
    delta : [9, N, F], optional
        D of the layer, whose update is ``X + D + D D``.

    Returns
    -------
    grad_x : [9, N, F]
        Gradients of the tensors before normalization.
    grad_delta : [9, N, F]
        Gradients of D; the same tensor without ``delta``.
    """
    check_device(grad)
    grad_delta = grad if delta is None else torch.empty_like(grad)
    launch_tiles(
        _tensor_gradients_kernel, grad, residual, x, inverse, factors, delta, grad, grad_delta
    )
    return grad, grad_delta


def scale_gradients(
    grad: Tensor, mapped: Tensor, scales: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the embedding's mapped tensors and of their scales.

    Parameters
    ----------
    grad : [9, N, F]
        Gradients of the scaled tensors. Overwritten by the first result.
    mapped : [9, N, F]
        Tensors before scaling.
    scales : [N, 3, F]
        Factors of the parts, before their activation.
    activation : str
        Name of the activation.

    Returns
    -------
    grad_mapped : [9, N, F]
    grad_scales : [N, 3, F]
    """
    check_device(grad)
    grad_scales = torch.empty_like(scales)
    outputs = grad, grad_scales
    launch_tiles(_scale_gradients_kernel, grad, mapped, scales, *outputs, ACTIVATION=activation)
    return outputs
