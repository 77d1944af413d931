"""Energies of atoms from the last tensors, and the gradients of these tensors.

    n = (3 I^2, 2 |a|^2, |S|^2)      z = W LayerNorm(n) + b      h = act(W1 act(z) + b1)
    e = w2 h + b2                    u = |U h|

https://arxiv.org/abs/2306.06482, eq. 13, with the ``Scalar`` output network of TorchMD-NET. The
uncertainty u is that of the last layer, as in `mlff_triton.model.readout.Readout`. The backward
pass ends with the gradients from which the backward pass of the last layer starts.
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
    combine,
    load_parts,
    load_tensor,
    norm_gradients,
    part_norms,
    scale_parts,
    store_tensor,
    times,
)
from mlff_triton.kernels.numerics.product import load_split, multiply, operands, scheme_of
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.interaction import square_backward
from mlff_triton.kernels.tensornet.launch_sizes import (
    head_blocks,
    invariant_blocks,
    tensor_blocks,
)
from mlff_triton.kernels.tensornet.reference.readout import deep_head, gated_head
from mlff_triton.kernels.tensornet.scalar_network import EPS

__all__ = [
    "deep_head",
    "gated_head",
    "map_invariants",
    "map_invariants_backward",
    "readout",
    "readout_backward",
    "scalar_head",
]


@triton.jit
def _row_mean(i, a, s, F: tl.constexpr):
    """Return the mean [M, 1] of the 3 F values of each row, given as three blocks [M, F]."""
    return (tl.sum(i + a + s, axis=1) / (3 * F))[:, None]


@triton.jit
def _row_moments(i, a, s, F: tl.constexpr):
    """Return the mean of each row and its inverse standard deviation, [M, 1] each."""
    mean = _row_mean(i, a, s, F)
    i, a, s = i - mean, a - mean, s - mean
    return mean, 1 / tl.sqrt(_row_mean(i * i, a * a, s * s, F) + EPS)


@triton.jit
def _invariants(x_ptr, inverse_ptr, offset, stride, inside, TRACE: tl.constexpr):
    """Return the invariants of tensors, three blocks [M, N]: norms, or the trace as I with TRACE.

    If the inverse norms are given, the invariants are those of the tensors before normalization.
    """
    x = load_tensor(x_ptr + offset, stride, inside)
    if inverse_ptr is not None:
        x = times(1 / tl.load(inverse_ptr + offset, inside, other=1.0), x)
    i, a, s = part_norms(x)
    if TRACE:
        i = x[0]
    return i, a, s


@triton.jit
def _normed_invariants_kernel(
    x_ptr,
    inverse_ptr,
    gain_ptr,
    shift_ptr,
    normed_ptr,
    n_atoms,
    F: tl.constexpr,
    TRACE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute and normalize invariants. Grid: one program per atom.

    Reads ``x[9, N, F]``, ``inverse[N, F]`` unless it is None, ``gain[3 F]`` and ``shift[3 F]``.
    Writes ``normed[N, 3, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, F)[None, :]
    stride = tl.cast(n_atoms, tl.int64) * F
    values = _invariants(x_ptr, inverse_ptr, atom * F + channel, stride, True, TRACE)
    mean, rstd = _row_moments(*values, F)
    rows = normed_ptr + atom * (3 * F) + channel
    for k in tl.static_range(3):
        column = k * F + channel
        normed = (values[k] - mean) * rstd * tl.load(gain_ptr + column)
        tl.store(rows + k * F, normed + tl.load(shift_ptr + column))


@triton.jit
def _rows_linear_kernel(
    rows_ptr,
    gain_ptr,
    high_ptr,
    low_ptr,
    bias_ptr,
    out_ptr,
    n_atoms,
    N_IN: tl.constexpr,
    N_OUT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Map rows. Grid: one program per M atoms and N of N_OUT outputs.

    Reads ``rows[N, N_IN]`` and the halves of ``weight[N_OUT, N_IN]``. The result is multiplied by
    ``gain[N_OUT]``, and ``bias[N_OUT]`` is added, unless they are None. Writes ``out[N, N_OUT]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    column = tl.program_id(1) * N + tl.arange(0, N)
    inside = atoms < n_atoms
    acc = tl.zeros([M, N], rows_ptr.dtype.element_ty)
    for start in range(0, N_IN, K):
        k = start + tl.arange(0, K)
        rows = tl.load(rows_ptr + atoms * N_IN + k[None, :], inside, other=0.0)
        weights = column[None, :] * N_IN + k[:, None]  # [K, N]
        weight = load_split(high_ptr, low_ptr, weights, PRECISION)
        acc = multiply(rows, weight, acc, PRECISION, LOSS)
    if gain_ptr is not None:
        acc *= tl.load(gain_ptr + column)[None, :]
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + column)[None, :]
    tl.store(out_ptr + atoms * N_OUT + column[None, :], acc, inside)


@triton.jit
def _scalar_head_kernel(
    hidden_ptr,
    high_ptr,
    low_ptr,
    bias1_ptr,
    adjoint_high_ptr,
    adjoint_low_ptr,
    weight2_ptr,
    bias2_ptr,
    deviations_high_ptr,
    deviations_low_ptr,
    order_ptr,
    energy_ptr,
    grad_ptr,
    uncertainty_ptr,
    n_atoms,
    F: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    FIRST: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute energies, their gradients and uncertainties. Grid: one program per M atoms.

    Reads ``hidden[N, F]``, the halves of ``weight1[H, F]`` and of its adjoint [F, H],
    ``bias1[H]``, ``weight2[H]`` and ``bias2[1]``. Writes ``energy[N]`` and ``grad[N, F]``. Unless
    ROWS is 0, reads the halves of ``deviations[ROWS, H]``, K rows at a time, and ``order[N]``, and
    writes ``uncertainty[N]`` in this order.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = tl.program_id(0) * M + tl.arange(0, M)
    mask = atoms < n_atoms
    inside = mask[:, None]
    rows = hidden_ptr + atoms.to(tl.int64)[:, None] * F
    inner = tl.arange(0, H)
    dtype: tl.constexpr = hidden_ptr.dtype.element_ty
    u = tl.zeros([M, H], dtype) + tl.load(bias1_ptr + inner)[None, :]
    for start in range(0, F, N):
        n = start + tl.arange(0, N)
        z = activate(tl.load(rows + n[None, :], inside, other=0.0), FIRST)
        weights = inner[None, :] * F + n[:, None]  # [N, H]
        weight = load_split(high_ptr, low_ptr, weights, PRECISION)
        u = multiply(z, weight, u, PRECISION, LOSS)
    weight2 = tl.load(weight2_ptr + inner)[None, :]
    last = activate(u, ACTIVATION)
    energy = tl.sum(last * weight2, axis=1) + tl.load(bias2_ptr)
    tl.store(energy_ptr + atoms, energy, mask)

    if ROWS > 0:
        square = tl.zeros([M], dtype)
        for start in range(0, ROWS, K):
            row = start + tl.arange(0, K)
            weights = row[None, :] * H + inner[:, None]  # [H, K]
            weight = load_split(deviations_high_ptr, deviations_low_ptr, weights, PRECISION)
            part = multiply(last, weight, tl.zeros([M, K], dtype), PRECISION, LOSS)
            square += tl.sum(part * part, axis=1)
        user = tl.load(order_ptr + atoms, mask, other=0)
        tl.store(uncertainty_ptr + user, tl.sqrt(square), mask)

    slope = activate_derivative(u, ACTIVATION) * weight2
    out = grad_ptr + atoms.to(tl.int64)[:, None] * F
    for start in range(0, F, N):
        n = start + tl.arange(0, N)
        weights = n[None, :] * H + inner[:, None]  # [H, N]
        grad = tl.zeros([M, N], dtype)
        weight = load_split(adjoint_high_ptr, adjoint_low_ptr, weights, PRECISION)
        grad = multiply(slope, weight, grad, PRECISION, LOSS)
        grad *= activate_derivative(tl.load(rows + n[None, :], inside, other=0.0), FIRST)
        tl.store(out + n[None, :], grad, inside)


@triton.jit
def _invariants_bwd_kernel(
    factors_ptr,
    x_ptr,
    inverse_ptr,
    n_atoms,
    F: tl.constexpr,
    TRACE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Differentiate the layer norm of invariants, in place. Grid: one program per atom.

    Reads ``factors[N, 3, F]``, ``x[9, N, F]`` and ``inverse[N, F]`` unless it is None. Writes
    ``factors[N, 3, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, F)[None, :]
    rows = factors_ptr + atom * (3 * F) + channel
    g0, g1, g2 = tl.load(rows), tl.load(rows + F), tl.load(rows + 2 * F)
    stride = tl.cast(n_atoms, tl.int64) * F
    i, a, s = _invariants(x_ptr, inverse_ptr, atom * F + channel, stride, True, TRACE)
    mean, rstd = _row_moments(i, a, s, F)
    i, a, s = (i - mean) * rstd, (a - mean) * rstd, (s - mean) * rstd
    mean, along = _row_mean(g0, g1, g2, F), _row_mean(g0 * i, g1 * a, g2 * s, F)
    tl.store(rows, (g0 - mean - i * along) * rstd)
    tl.store(rows + F, (g1 - mean - a * along) * rstd)
    tl.store(rows + 2 * F, (g2 - mean - s * along) * rstd)


@triton.jit
def _tensors_bwd_kernel(
    factors_ptr,
    x_ptr,
    delta_ptr,
    charge_factor_ptr,
    grad_x_ptr,
    grad_delta_ptr,
    n_atoms,
    F: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute the gradients of the last tensors. Grid: one program per M atoms and N channels.

    Reads ``factors[N, 3, F]``, ``x[9, N, F]``, ``delta[9, N, F]`` and ``charge_factor[N]``. Writes
    ``grad_x[9, N, F]`` and ``grad_delta[9, N, F]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    row = tl.program_id(0) * M + tl.arange(0, M)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    inside = (row < n_atoms)[:, None]
    atoms = row.to(tl.int64)[:, None]
    stride = tl.cast(n_atoms, tl.int64) * F
    offset = atoms * F + channel[None, :]
    factors = load_parts(factors_ptr + atoms * (3 * F) + channel[None, :], F, inside)
    x = load_tensor(x_ptr + offset, stride, inside)
    grad_x = scale_parts(factors, norm_gradients(x))
    store_tensor(grad_x_ptr + offset, stride, grad_x, inside)
    charge_factor = tl.load(charge_factor_ptr + row, row < n_atoms, other=1.0)[:, None]
    delta = load_tensor(delta_ptr + offset, stride, inside)
    grad_delta = combine(1.0, grad_x, charge_factor, square_backward(grad_x, delta))
    store_tensor(grad_delta_ptr + offset, stride, grad_delta, inside)


def readout(x: Tensor, gain: Tensor, shift: Tensor, weight: SplitWeight, bias: Tensor) -> Tensor:
    """Normalize and map the invariants of the last tensors.

    Parameters
    ----------
    x : [9, N, F]
        Last tensors.
    gain, shift : [3 F]
        Weights of the layer norm.
    weight, bias : SplitWeight [F, 3 F], [F]
        Linear map of the norms.

    Returns
    -------
    [N, F]
        z.
    """
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
    """Normalize and map the invariants of tensors [9, N, F], as `readout` does.

    With ``trace``, the first invariant is I instead of its norm. If ``inverse`` [N, F] is given,
    the invariants are those of the tensors before normalization.
    """
    check_device(x)
    n_atoms, channels = x.shape[1:]
    normed = x.new_empty(n_atoms, 3 * channels)
    with torch.cuda.device_of(x):
        _normed_invariants_kernel[(n_atoms,)](
            x,
            inverse,
            gain,
            shift,
            normed,
            n_atoms,
            F=channels,
            TRACE=trace,
            num_warps=max(channels // 64, 1),
            **early_launch(x),
        )
    return _rows_linear(normed, weight, bias=bias)


def _rows_linear(
    rows: Tensor, weight: SplitWeight, *, gain: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Map rows [N, I] by a weight [O, I], multiply by a gain [O], and add a bias [O]."""
    n_atoms, n_in = rows.shape
    n_out = len(weight.weight)
    out = rows.new_empty(n_atoms, n_out)
    blocks = invariant_blocks(out if n_out < n_in else rows)
    with torch.cuda.device_of(rows):
        _rows_linear_kernel[(triton.cdiv(n_atoms, blocks.atoms), n_out // blocks.channels)](
            rows,
            gain,
            *operands(weight),
            bias,
            out,
            n_atoms,
            N_IN=n_in,
            N_OUT=n_out,
            M=blocks.atoms,
            N=blocks.channels,
            K=blocks.inner,
            PRECISION=scheme_of(weight, rows),
            LOSS=loss_of(rows).tf32_product,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(rows),
        )
    return out


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
    """Compute the energies of atoms, their gradients, and their uncertainties.

    Parameters
    ----------
    hidden : [N, F]
        z.
    weight1, bias1, adjoint1 : SplitWeight [H, F], [H], SplitWeight [F, H]
        First linear map, and its adjoint.
    weight2, bias2 : [H], [1]
        Second linear map.
    first, activation : str
        Activations of z, or "none", and of the network.
    deviations : SplitWeight [K, H], optional
        U. Its number of rows must be a power of two, and at least 16.
    order : int32 [N or more], optional
        The user's index of each atom, and of others; given with ``deviations``.

    Returns
    -------
    energies : [N]
    grad : [N, F]
        Derivatives of the energies with respect to z.
    uncertainty : [N or more] or None
        u, in the user's order. Those of atoms without a row in ``hidden`` are not written.
    """
    check_device(hidden)
    n_atoms, channels = hidden.shape
    energies, grad = hidden.new_empty(n_atoms), torch.empty_like(hidden)
    blocks, n_rows, high, low, uncertainty = head_blocks(hidden), 0, None, None, None
    if deviations is not None and order is not None:
        n_rows, (high, low) = len(deviations.weight), operands(deviations)
        uncertainty = hidden.new_empty(len(order))
    with torch.cuda.device_of(hidden):
        _scalar_head_kernel[(triton.cdiv(n_atoms, blocks.atoms),)](
            hidden,
            *operands(weight1),
            bias1,
            *operands(adjoint1),
            weight2,
            bias2,
            high,
            low,
            None if uncertainty is None else order,
            energies,
            grad,
            uncertainty,
            n_atoms,
            F=channels,
            H=len(bias1),
            ROWS=n_rows,
            FIRST=first,
            ACTIVATION=activation,
            M=blocks.atoms,
            N=blocks.channels,
            K=min(blocks.channels, max(n_rows, 16)),
            PRECISION=scheme_of(weight1, hidden),
            LOSS=loss_of(hidden).tf32_product,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(hidden),
        )
    return energies, grad, uncertainty


def readout_backward(
    grad: Tensor,
    x: Tensor,
    gain: Tensor,
    weight: SplitWeight,
    delta: Tensor,
    charge_factor: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the last tensors, and of the D that the last layer added.

    Parameters
    ----------
    grad : [N, F]
        Gradients of z.
    x : [9, N, F]
        Last tensors.
    gain : [3 F]
        Weights of the layer norm.
    weight : SplitWeight [3 F, F]
        Adjoint of the linear map.
    delta : [9, N, F]
        D of the last layer.
    charge_factor : [N]
        ``1 + 0.1 q``, with the total charge q of the atom's system.

    Returns
    -------
    grad_x, grad_delta : [9, N, F]
    """
    factors = map_invariants_backward(grad, x, None, gain, weight, trace=False)
    n_atoms, channels = x.shape[1:]
    grad_x, grad_delta = torch.empty_like(x), torch.empty_like(x)
    tensors = tensor_blocks(x)
    with torch.cuda.device_of(x):
        _tensors_bwd_kernel[(triton.cdiv(n_atoms, tensors.atoms), channels // tensors.channels)](
            factors,
            x,
            delta,
            charge_factor,
            grad_x,
            grad_delta,
            n_atoms,
            F=channels,
            M=tensors.atoms,
            N=tensors.channels,
            num_warps=tensors.warps,
            **early_launch(x),
        )
    return grad_x, grad_delta


def map_invariants_backward(
    grad: Tensor,
    x: Tensor,
    inverse: Tensor | None,
    gain: Tensor,
    weight: SplitWeight,
    *,
    trace: bool,
) -> Tensor:
    """Compute the gradients [N, 3, F] of the invariants, for the adjoint weight [3 F, F].

    Other arguments are those of `map_invariants`.
    """
    check_device(x)
    n_atoms, channels = x.shape[1:]
    factors = _rows_linear(grad, weight, gain=gain).view(n_atoms, 3, channels)
    with torch.cuda.device_of(x):
        _invariants_bwd_kernel[(n_atoms,)](
            factors,
            x,
            inverse,
            n_atoms,
            F=channels,
            TRACE=trace,
            num_warps=max(channels // 64, 1),
            **early_launch(x),
        )
    return factors
