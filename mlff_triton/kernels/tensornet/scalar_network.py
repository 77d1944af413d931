"""Network from the norms of the first tensors to factors of their parts.

    z1 = W1 LayerNorm(n) + b1      z2 = W2 act(z1) + b2      factors act(z2)

https://arxiv.org/abs/2306.06482, eq. 8. Each linear map is fused with the normalization or
activation that precedes it, and each adjoint with the derivative that follows it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate, activate_derivative
from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.numerics.product import load_split, multiply, operands, scheme_of
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.launch_sizes import row_blocks

EPS = tl.constexpr(1e-5)  # default of PyTorch's LayerNorm


@triton.jit
def _row_moments(x, F: tl.constexpr):
    """Return the mean of each row and its inverse standard deviation, [M, 1] each, for x [M, F]."""
    mean = (tl.sum(x, axis=1) / F)[:, None]
    centered = x - mean
    rstd = 1 / tl.sqrt(tl.sum(centered * centered, axis=1) / F + EPS)
    return mean, rstd[:, None]


@triton.jit
def _hidden_fwd_kernel(
    norm_ptr,
    gain_ptr,
    shift_ptr,
    high_ptr,
    low_ptr,
    bias_ptr,
    hidden_ptr,
    n_atoms,
    F: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute z1, with the layer norm. Grid: one program per M atoms and N of 2 F outputs.

    Reads ``norm[N, F]``, ``gain[F]``, ``shift[F]``, the halves of ``weight1[2 F, F]`` and
    ``bias1[2 F]``. Writes ``hidden[N, 2 F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]  # [M, 1]
    out = tl.program_id(1) * N + tl.arange(0, N)
    inside = atoms < n_atoms
    rows = norm_ptr + atoms * F
    mean, rstd = _row_moments(tl.load(rows + tl.arange(0, F)[None, :], inside, other=0.0), F)
    hidden = tl.zeros([M, N], mean.dtype) + tl.load(bias_ptr + out)[None, :]
    for start in range(0, F, K):
        k = start + tl.arange(0, K)
        x = (tl.load(rows + k[None, :], inside, other=0.0) - mean) * rstd
        x = x * tl.load(gain_ptr + k)[None, :] + tl.load(shift_ptr + k)[None, :]
        weights = out[None, :] * F + k[:, None]  # [K, N]
        weight = load_split(high_ptr, low_ptr, weights, PRECISION)
        hidden = multiply(x, weight, hidden, PRECISION, LOSS)
    tl.store(hidden_ptr + atoms * (2 * F) + out[None, :], hidden, inside)


@triton.jit
def _scales_fwd_kernel(
    hidden_ptr,
    high_ptr,
    low_ptr,
    bias_ptr,
    scales_ptr,
    n_atoms,
    F: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute z2, with the activation of z1. Grid: one program per M atoms and N of 3 F outputs.

    Reads ``hidden[N, 2 F]``, the halves of ``weight2[3 F, 2 F]`` and ``bias2[3 F]``. Writes
    ``scales[N, 3 F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    out = tl.program_id(1) * N + tl.arange(0, N)
    inside = atoms < n_atoms
    scales = tl.zeros([M, N], hidden_ptr.dtype.element_ty) + tl.load(bias_ptr + out)[None, :]
    for start in range(0, 2 * F, K):
        k = start + tl.arange(0, K)
        hidden = tl.load(hidden_ptr + atoms * (2 * F) + k[None, :], inside, other=0.0)
        weights = out[None, :] * (2 * F) + k[:, None]  # [K, N]
        hidden = activate(hidden, ACTIVATION)
        weight = load_split(high_ptr, low_ptr, weights, PRECISION)
        scales = multiply(hidden, weight, scales, PRECISION, LOSS)
    tl.store(scales_ptr + atoms * (3 * F) + out[None, :], scales, inside)


@triton.jit
def _hidden_bwd_kernel(
    grad_ptr,
    high_ptr,
    low_ptr,
    hidden_ptr,
    grad_hidden_ptr,
    n_atoms,
    F: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute the gradients of z1. Grid: one program per M atoms and N of 2 F channels.

    Reads ``grad[N, 3 F]``, the halves of the adjoint weight [2 F, 3 F] and ``hidden[N, 2 F]``.
    Writes ``grad_hidden[N, 2 F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    out = tl.program_id(1) * N + tl.arange(0, N)
    inside = atoms < n_atoms
    acc = tl.zeros([M, N], grad_ptr.dtype.element_ty)
    for start in range(0, 3 * F, K):
        k = start + tl.arange(0, K)
        grad = tl.load(grad_ptr + atoms * (3 * F) + k[None, :], inside, other=0.0)
        weights = out[None, :] * (3 * F) + k[:, None]  # [K, N]
        weight = load_split(high_ptr, low_ptr, weights, PRECISION)
        acc = multiply(grad, weight, acc, PRECISION, LOSS)
    hidden = tl.load(hidden_ptr + atoms * (2 * F) + out[None, :], inside, other=0.0)
    acc *= activate_derivative(hidden, ACTIVATION)
    tl.store(grad_hidden_ptr + atoms * (2 * F) + out[None, :], acc, inside)


@triton.jit
def _norm_bwd_kernel(
    grad_ptr,
    norm_ptr,
    gain_ptr,
    high_ptr,
    low_ptr,
    grad_norm_ptr,
    n_atoms,
    F: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute the gradients of the norms. Grid: one program per M atoms.

    Reads ``grad[N, 2 F]``, ``norm[N, F]``, ``gain[F]`` and the halves of the adjoint weight
    [F, 2 F]. Writes ``grad_norm[N, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    channel = tl.arange(0, F)
    inside = atoms < n_atoms
    grad = tl.zeros([M, F], grad_ptr.dtype.element_ty)
    for start in range(0, 2 * F, K):
        k = start + tl.arange(0, K)
        hidden = tl.load(grad_ptr + atoms * (2 * F) + k[None, :], inside, other=0.0)
        weights = channel[None, :] * (2 * F) + k[:, None]  # [K, F]
        weight = load_split(high_ptr, low_ptr, weights, PRECISION)
        grad = multiply(hidden, weight, grad, PRECISION, LOSS)
    norm = tl.load(norm_ptr + atoms * F + channel[None, :], inside, other=0.0)
    mean, rstd = _row_moments(norm, F)
    x = (norm - mean) * rstd
    grad *= tl.load(gain_ptr + channel)[None, :]
    grad -= (tl.sum(grad, axis=1) / F)[:, None] + x * (tl.sum(grad * x, axis=1) / F)[:, None]
    tl.store(grad_norm_ptr + atoms * F + channel[None, :], grad * rstd, inside)


def scalar_network(
    norm: Tensor,
    gain: Tensor,
    shift: Tensor,
    weight1: SplitWeight,
    bias1: Tensor,
    weight2: SplitWeight,
    bias2: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Compute the factors of the parts from norms, before the last activation.

    Parameters
    ----------
    norm : [N, F]
        Squared norms of the first tensors.
    gain, shift : [F]
        Weights of the layer norm.
    weight1, bias1 : SplitWeight [2 F, F], [2 F]
        First linear map.
    weight2, bias2 : SplitWeight [3 F, 2 F], [3 F]
        Second linear map.
    activation : str
        Name of the activation after each map.

    Returns
    -------
    hidden : [N, 2 F]
        z1: hidden values before their activation.
    scales : [N, 3, F]
        z2: factors before their activation.
    """
    check_device(norm)
    n_atoms, channels = norm.shape
    hidden = norm.new_empty(n_atoms, 2 * channels)
    scales = norm.new_empty(n_atoms, 3, channels)
    blocks, precision = row_blocks(norm), scheme_of(weight1, norm)
    loss = loss_of(norm).tf32_product
    programs = triton.cdiv(n_atoms, blocks.atoms)
    with torch.cuda.device_of(norm):
        _hidden_fwd_kernel[(programs, 2 * channels // blocks.channels)](
            norm,
            gain,
            shift,
            *operands(weight1),
            bias1,
            hidden,
            n_atoms,
            F=channels,
            M=blocks.atoms,
            N=blocks.channels,
            K=blocks.inner,
            PRECISION=precision,
            LOSS=loss,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(norm),
        )
        _scales_fwd_kernel[(programs, 3 * channels // blocks.channels)](
            hidden,
            *operands(weight2),
            bias2,
            scales,
            n_atoms,
            F=channels,
            ACTIVATION=activation,
            M=blocks.atoms,
            N=blocks.channels,
            K=blocks.inner,
            PRECISION=precision,
            LOSS=loss,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(norm),
        )
    return hidden, scales


def scalar_network_backward(
    grad: Tensor,
    norm: Tensor,
    gain: Tensor,
    weight1: SplitWeight,
    weight2: SplitWeight,
    hidden: Tensor,
    activation: str,
) -> Tensor:
    """Compute the gradients [N, F] of the norms.

    Parameters
    ----------
    grad : [N, 3, F]
        Gradients of the factors before their activation.
    norm, gain, hidden, activation
        As for `scalar_network`.
    weight1, weight2 : SplitWeight [F, 2 F], [2 F, 3 F]
        Adjoint maps.
    """
    check_device(norm)
    n_atoms, channels = norm.shape
    grad_hidden, grad_norm = torch.empty_like(hidden), torch.empty_like(norm)
    blocks, precision = row_blocks(norm), scheme_of(weight1, norm)
    loss = loss_of(norm).tf32_product
    programs = triton.cdiv(n_atoms, blocks.atoms)
    with torch.cuda.device_of(norm):
        _hidden_bwd_kernel[(programs, 2 * channels // blocks.channels)](
            grad,
            *operands(weight2),
            hidden,
            grad_hidden,
            n_atoms,
            F=channels,
            ACTIVATION=activation,
            M=blocks.atoms,
            N=blocks.channels,
            K=blocks.inner,
            PRECISION=precision,
            LOSS=loss,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(norm),
        )
        _norm_bwd_kernel[(programs,)](
            grad_hidden,
            norm,
            gain,
            *operands(weight1),
            grad_norm,
            n_atoms,
            F=channels,
            M=blocks.atoms,
            K=blocks.inner,
            PRECISION=precision,
            LOSS=loss,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(norm),
        )
    return grad_norm
