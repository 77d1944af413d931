"""Energies of atoms from the last tensors, and their gradients, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet.readout`, which uses `gated_head`
and `deep_head` too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.activations import activate, activate_derivative
from mlff_triton.kernels.common.reference.tensors import (
    norm_gradients,
    part_norms,
    scale_parts,
    square_backward,
)
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.reference.scalar_network import (
    normalize_rows,
    normalize_rows_backward,
)


def readout(x: Tensor, gain: Tensor, shift: Tensor, weight: SplitWeight, bias: Tensor) -> Tensor:
    """Normalize and map the invariants of the last tensors: [9, N, F] -> [N, F]."""
    return map_invariants(x, None, gain, shift, weight, bias, trace=False)


def map_invariants(
    x: Tensor,
    inverse: Tensor | None,
    gain: Tensor,
    shift: Tensor,
    weight: SplitWeight,
    bias: Tensor,
    *,
    trace: bool,
) -> Tensor:
    """Normalize and map the invariants of tensors, perhaps of those before normalization."""
    normalized, _ = normalize_rows(_invariants(x, inverse, trace))
    return torch.addmm(bias, normalized * gain + shift, weight.weight.T)


def readout_backward(
    grad: Tensor,
    x: Tensor,
    gain: Tensor,
    weight: SplitWeight,
    delta: Tensor,
    charge_factor: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the last tensors, and of the D that the last layer added."""
    factors = map_invariants_backward(grad, x, None, gain, weight, trace=False)
    grad_x = scale_parts(factors.transpose(0, 1), norm_gradients(x))
    return grad_x, grad_x + charge_factor[: x.shape[1], None] * square_backward(grad_x, delta)


def map_invariants_backward(
    grad: Tensor,
    x: Tensor,
    inverse: Tensor | None,
    gain: Tensor,
    weight: SplitWeight,
    *,
    trace: bool,
) -> Tensor:
    """Compute the gradients [N, 3, F] of the invariants."""
    invariants = _invariants(x, inverse, trace)
    by_part = normalize_rows_backward((grad @ weight.weight.T) * gain, invariants)
    factors: Tensor = by_part.unflatten(1, (3, -1))
    return factors


def _invariants(x: Tensor, inverse: Tensor | None, trace: bool) -> Tensor:
    """Return the norms of the parts, or I and two norms with ``trace``: [9, N, F] -> [N, 3 F]."""
    x = x if inverse is None else x / inverse
    i, a, s = part_norms(x)
    return torch.cat([x[0] if trace else i, a, s], dim=1)


def scalar_head(
    hidden: Tensor,
    weight1: SplitWeight,
    bias1: Tensor,
    adjoint1: SplitWeight,
    weight2: Tensor,
    bias2: Tensor,
    first: str,
    activation: str,
    deviations: SplitWeight | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the energies [N] of atoms, their gradients [N, F] and uncertainties [N or more]."""
    u = torch.addmm(bias1, activate(hidden, first), weight1.weight.T)
    last = activate(u, activation)
    grad = (activate_derivative(u, activation) * weight2) @ adjoint1.weight.T
    energies, grad = last @ weight2 + bias2, grad * activate_derivative(hidden, first)
    return energies, grad, _uncertainty(last, deviations, order)


def gated_head(
    hidden: Tensor,
    values: Sequence[tuple[Tensor, Tensor]],
    gates: Sequence[tuple[Tensor, Tensor]],
    scale: float,
    first: str,
    deviations: SplitWeight | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute MatGL's ``WeightedReadOut``: one network times the sigmoid of another.

    Parameters
    ----------
    hidden : [N, F]
        Output of the readout.
    values, gates : sequence of ([in, out], [out])
        Linear maps of both networks, with SiLU between them.
    scale : float
        Factor of the energies.
    first : str
        Activation of ``hidden``, or "none".
    deviations : SplitWeight [K, H], optional
        Map from the last hidden values of the first network, times the sigmoid, to uncertainties.
    order : int32 [N or more], optional
        The user's index of each atom, and of others; given with ``deviations``.

    Returns
    -------
    energies : [N]
    grad : [N, F]
        Derivatives of the energies with respect to ``hidden``.
    uncertainty : [N or more] or None
        As in `mlff_triton.kernels.tensornet.readout.scalar_head`.
    """
    x = activate(hidden, first)
    value, value_trace = _forward(x, values, "silu")
    gate, gate_trace = _forward(x, gates, "silu")
    sigmoid = torch.sigmoid(gate)
    weight = scale * sigmoid
    energies = value * weight
    grad = _backward(weight, values, value_trace, "silu")
    grad = grad + _backward(energies * (1 - sigmoid), gates, gate_trace, "silu")
    grad = grad * activate_derivative(hidden, first)
    if deviations is None:
        return energies[:, 0], grad, None
    last = sigmoid * _last_hidden(x, value_trace, "silu")
    return energies[:, 0], grad, _uncertainty(last, deviations, order)


def deep_head(
    hidden: Tensor,
    maps: Sequence[tuple[Tensor, Tensor]],
    first: str,
    activation: str,
    deviations: SplitWeight | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the energies of atoms by a network of any depth.

    Parameters
    ----------
    hidden : [N, F]
        Output of the readout.
    maps : sequence of ([in, out], [out])
        Linear maps, the last one to energies in eV.
    first, activation : str
        Activations of ``hidden``, or "none", and between the maps.
    deviations : SplitWeight [K, H], optional
        Map from the last hidden values to uncertainties.
    order : int32 [N or more], optional
        The user's index of each atom, and of others; given with ``deviations``.

    Returns
    -------
    energies : [N]
    grad : [N, F]
        Derivatives of the energies with respect to ``hidden``.
    uncertainty : [N or more] or None
        As in `mlff_triton.kernels.tensornet.readout.scalar_head`.
    """
    x = activate(hidden, first)
    energies, trace = _forward(x, maps, activation)
    grad = _backward(torch.ones_like(energies), maps, trace, activation)
    grad = grad * activate_derivative(hidden, first)
    if deviations is None:
        return energies[:, 0], grad, None
    return energies[:, 0], grad, _uncertainty(_last_hidden(x, trace, activation), deviations, order)


def _uncertainty(
    last: Tensor, deviations: SplitWeight | None, order: Tensor | None
) -> Tensor | None:
    """Return the norms of mapped hidden values [n, H], in the user's order: [N]."""
    if deviations is None or order is None:
        return None
    found = last.new_empty(len(order))
    norms = torch.linalg.vector_norm(last @ deviations.weight.T, dim=1)
    return found.index_copy_(0, order[: len(last)].long(), norms)


def _last_hidden(x: Tensor, trace: Sequence[Tensor], activation: str) -> Tensor:
    """Return what the last map of a network multiplies, given its input and its hidden values."""
    return activate(trace[-1], activation) if trace else x


def _forward(
    x: Tensor, maps: Sequence[tuple[Tensor, Tensor]], activation: str
) -> tuple[Tensor, list[Tensor]]:
    """Return the output of a network, and its hidden values before their activation."""
    trace = []
    for weight, bias in maps[:-1]:
        trace.append(torch.addmm(bias, x, weight))
        x = activate(trace[-1], activation)
    weight, bias = maps[-1]
    return torch.addmm(bias, x, weight), trace


def _backward(
    grad: Tensor, maps: Sequence[tuple[Tensor, Tensor]], trace: Sequence[Tensor], activation: str
) -> Tensor:
    """Return the gradient of a network's input, given that of its output."""
    for (weight, _), z in zip(maps[:0:-1], reversed(trace), strict=True):
        grad = (grad @ weight.T) * activate_derivative(z, activation)
    return grad @ maps[0][0].T
