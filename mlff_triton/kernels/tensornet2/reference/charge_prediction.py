"""Prediction of charges from tensors, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.charge_prediction`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.activations import activate, activate_derivative
from mlff_triton.kernels.common.reference.tensors import (
    dot_parts,
    norm_gradients,
    normalize_backward,
    scale_parts,
    square_backward,
)
from mlff_triton.kernels.tensornet.reference.readout import map_invariants, map_invariants_backward
from mlff_triton.kernels.types.charge_network import ChargeNetwork


def predict_charges(
    x: Tensor, inverse: Tensor | None, network: ChargeNetwork
) -> tuple[Tensor, Tensor, Tensor]:
    """Predict charges and weights [N, 2 Q]; also return the hidden values, [N, F] twice."""
    n = network
    z1 = map_invariants(x, inverse, n.gain, n.shift, n.first, n.first_bias, trace=True)
    z2 = torch.addmm(n.second_bias, activate(z1, n.activation), n.second.weight.T)
    predicted = torch.addmm(n.third_bias, activate(z2, n.activation), n.third.weight.T)
    return predicted[:, : n.n_outputs], z1, z2


def predict_charges_backward(
    grad: Tensor, x: Tensor, inverse: Tensor | None, network: ChargeNetwork, z1: Tensor, z2: Tensor
) -> Tensor:
    """Compute the gradients [N, 3, F] of the invariants."""
    n = network
    grad_z2 = grad @ n.third_adjoint.weight.T[: n.n_outputs]
    grad_z2 = grad_z2 * activate_derivative(z2, n.activation)
    grad_z1 = grad_z2 @ n.second_adjoint.weight.T * activate_derivative(z1, n.activation)
    return map_invariants_backward(grad_z1, x, inverse, n.gain, n.first_adjoint, trace=True)


def tensor_gradients(
    grad: Tensor,
    residual: Tensor | None,
    x: Tensor,
    inverse: Tensor | None,
    factors: Tensor,
    delta: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Add the gradients by invariants to those of tensors; return those of D, too."""
    if residual is not None:
        grad = grad + residual
    if inverse is not None:
        x = x / inverse
        grad = normalize_backward(grad, x, inverse)
    slopes = norm_gradients(x)
    slopes[0] = 1.0  # of the trace
    grad = grad + scale_parts(factors.transpose(0, 1), slopes)
    return grad, grad if delta is None else grad + square_backward(grad, delta)


def scale_gradients(
    grad: Tensor, mapped: Tensor, scales: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of mapped tensors [9, N, F] and of their scales [N, 3, F]."""
    factors = activate(scales, activation).transpose(0, 1)
    sums = dot_parts(grad, mapped).transpose(0, 1)
    return scale_parts(factors, grad), sums * activate_derivative(scales, activation)
