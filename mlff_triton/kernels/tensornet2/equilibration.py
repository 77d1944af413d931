"""Equilibration of partial charges, and its adjoint.

    q_i = c_i + w_i / (sum_k w_k + 1e-6) (Q - sum_k c_k)      w_i = f_i^2 + floor

for each channel, with sums over the atoms k of a system of total charge Q. With a floor of 0, this
is ``ChargePredict.qeq`` in ``torchmdnet/models/tensornet2.py``. One program sums a channel block of
a system in float64, in the user's order of atoms, so the sums depend neither on other systems nor
on the sorting of atoms.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.types.charges import SumParts

_EPS = tl.constexpr(1e-6)
_CHANNELS = 8  # per program of the sums: a sector of memory
_ROWS = 1024  # atoms in an iteration of the sums
_WARPS = 8  # per program of the sums
_ELEMENTS = 512  # per program of other kernels


@triton.jit
def _excess_kernel(
    predicted_ptr,
    totals_ptr,
    rank_ptr,
    system_ptr,
    shared_ptr,
    FLOOR: tl.constexpr,
    Q: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum predictions. Grid: one program per system and CHANNELS channels.

    Reads ``predicted[N, 2 Q]``, ``totals[B]``, ``rank[N]`` and ``system[B + 1]``. Writes
    ``shared[B, 2, Q]``: ``Q - sum c``, and the inverse of the other sum. If ``totals`` is None, it
    writes both sums.
    """
    wait_for_previous(EARLY_LAUNCH)
    system = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    used = channel < Q
    begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
    charge = tl.zeros([ROWS, CHANNELS], tl.float64)
    weight = charge
    for start in range(begin, end, ROWS):
        atom = start + tl.arange(0, ROWS)
        live = atom < end
        row = tl.load(rank_ptr + atom, live, other=0).to(tl.int64)
        pointers = predicted_ptr + row[:, None] * (2 * Q) + channel[None, :]
        mask = live[:, None] & used[None, :]
        charge += tl.load(pointers, mask, other=0.0).to(tl.float64)
        f = tl.load(pointers + Q, mask, other=0.0).to(tl.float64)
        weight += tl.where(mask, f * f + FLOOR, 0.0)
    out = shared_ptr + system * (2 * Q) + channel
    charge, weight = tl.sum(charge, axis=0), tl.sum(weight, axis=0)
    if totals_ptr is not None:
        charge = tl.load(totals_ptr + system).to(tl.float64) - charge
        weight = 1 / (weight + _EPS)
    tl.store(out, charge, used)
    tl.store(out + Q, weight, used)


@triton.jit
def _excess_gradient_kernel(
    grad_ptr,
    predicted_ptr,
    shared_ptr,
    rank_ptr,
    system_ptr,
    grad_excess_ptr,
    stride,
    FLOOR: tl.constexpr,
    Q: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum gradients of the excess. Grid: one program per system and CHANNELS channels.

    Reads ``grad[N, Q]``, whose rows are ``stride`` apart, ``predicted[N, 2 Q]``,
    ``shared[B, 2, Q]``, ``rank[N]`` and ``system[B + 1]``. Writes ``grad_excess[B, Q]``; if
    ``shared`` is None, without its factor.
    """
    wait_for_previous(EARLY_LAUNCH)
    system = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    used = channel < Q
    begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
    total = tl.zeros([ROWS, CHANNELS], tl.float64)
    for start in range(begin, end, ROWS):
        atom = start + tl.arange(0, ROWS)
        live = atom < end
        row = tl.load(rank_ptr + atom, live, other=0).to(tl.int64)[:, None]
        mask = live[:, None] & used[None, :]
        f = tl.load(predicted_ptr + row * (2 * Q) + Q + channel[None, :], mask, other=0.0)
        grad = tl.load(grad_ptr + row * stride + channel[None, :], mask, other=0.0)
        f = f.to(tl.float64)
        total += grad.to(tl.float64) * (f * f + FLOOR)
    total = tl.sum(total, axis=0)
    if shared_ptr is not None:
        total *= tl.load(shared_ptr + system * (2 * Q) + Q + channel, used, other=0.0)
    tl.store(grad_excess_ptr + system * Q + channel, total, used)


@triton.jit
def _equilibrate_fwd_kernel(
    predicted_ptr,
    shared_ptr,
    systems_ptr,
    charges_ptr,
    stride,
    n_elements,
    FLOOR: tl.constexpr,
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Share the excess among atoms. Grid: one program per BLOCK charges.

    Reads ``predicted[N, 2 Q]``, ``shared[B, 2, Q]`` and ``systems[N]``. Writes ``charges[N, Q]``,
    whose rows are ``stride`` apart.
    """
    wait_for_previous(EARLY_LAUNCH)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    row, channel = index // Q, index % Q
    system = tl.load(systems_ptr + row, mask, other=0).to(tl.int64)
    pointers = predicted_ptr + row * (2 * Q) + channel
    c = tl.load(pointers, mask, other=0.0)
    f = tl.load(pointers + Q, mask, other=0.0).to(tl.float64)
    excess = tl.load(shared_ptr + system * (2 * Q) + channel, mask, other=0.0)
    inverse = tl.load(shared_ptr + system * (2 * Q) + Q + channel, mask, other=0.0)
    charge = c.to(tl.float64) + (f * f + FLOOR) * inverse * excess
    tl.store(charges_ptr + row * stride + channel, charge.to(c.dtype), mask)


@triton.jit
def _equilibrate_bwd_kernel(
    grad_ptr,
    predicted_ptr,
    shared_ptr,
    grad_excess_ptr,
    systems_ptr,
    grad_predicted_ptr,
    stride,
    n_elements,
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute the gradients of predictions. Grid: one program per BLOCK charges.

    Reads ``grad[N, Q]``, whose rows are ``stride`` apart, ``predicted[N, 2 Q]``,
    ``shared[B, 2, Q]``, ``grad_excess[B, Q]`` and ``systems[N]``. Writes
    ``grad_predicted[N, 2 Q]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements
    row, channel = index // Q, index % Q
    system = tl.load(systems_ptr + row, mask, other=0).to(tl.int64)
    offset = row * (2 * Q) + channel
    grad = tl.load(grad_ptr + row * stride + channel, mask, other=0.0)
    f = tl.load(predicted_ptr + offset + Q, mask, other=0.0).to(tl.float64)
    excess = tl.load(shared_ptr + system * (2 * Q) + channel, mask, other=0.0)
    inverse = tl.load(shared_ptr + system * (2 * Q) + Q + channel, mask, other=0.0)
    grad_excess = tl.load(grad_excess_ptr + system * Q + channel, mask, other=0.0)
    grad_c = grad.to(tl.float64) - grad_excess
    tl.store(grad_predicted_ptr + offset, grad_c.to(grad.dtype), mask)
    grad_f = 2 * f * inverse * excess * grad_c
    tl.store(grad_predicted_ptr + offset + Q, grad_f.to(grad.dtype), mask)


def equilibrate(
    predicted: Tensor,
    totals: Tensor,
    systems: Tensor,
    rank: Tensor,
    system_ptr: Tensor,
    charges: Tensor,
    floor: float = 0.0,
    sum_parts: SumParts | None = None,
) -> Tensor:
    """Share the missing charge of each system among its atoms.

    Parameters
    ----------
    predicted : [N, 2 Q]
        Charges c and softness f of each atom, before equilibration.
    totals : float64 [B]
        Total charge of each system, elementary charges.
    systems : int32 [N]
        System of each row.
    rank : int32 [N]
        Row of each of the user's atoms.
    system_ptr : int32 [B + 1]
        First atom of each system, in the user's order.
    charges : [N, Q]
        Output: charges, which add up to the totals unless all weights are tiny. Rows need not
        follow each other.
    floor : float
        Weight of an atom whose softness is 0. With 0, forces have spikes where the softness of all
        atoms of a small system passes through zero.
    sum_parts : callable, optional
        Sums over all parts of a divided system.

    Returns
    -------
    float64 [B, 2, Q]
        Missing charge of each system, and the inverse sum of its weights.
    """
    check_device(predicted)
    n_charges = charges.shape[1]
    shared = totals.new_empty(len(totals), 2, n_charges)
    with torch.cuda.device_of(predicted):
        _excess_kernel[(len(totals), triton.cdiv(n_charges, _CHANNELS))](
            predicted,
            totals if sum_parts is None else None,
            rank,
            system_ptr,
            shared,
            FLOOR=floor,
            Q=n_charges,
            CHANNELS=_CHANNELS,
            ROWS=_ROWS,
            num_warps=_WARPS,
            **early_launch(predicted),
        )
        if sum_parts is not None:
            charge, weight = sum_parts(shared).unbind(1)
            shared = torch.stack([totals[:, None] - charge, 1 / (weight + _EPS.value)], dim=1)
        _equilibrate_fwd_kernel[(triton.cdiv(charges.numel(), _ELEMENTS),)](
            predicted,
            shared,
            systems,
            charges,
            charges.stride(0),
            charges.numel(),
            FLOOR=floor,
            Q=n_charges,
            BLOCK=_ELEMENTS,
            **early_launch(predicted),
        )
    return shared


def equilibrate_backward(
    grad: Tensor,
    predicted: Tensor,
    shared: Tensor,
    systems: Tensor,
    rank: Tensor,
    system_ptr: Tensor,
    floor: float = 0.0,
    sum_parts: SumParts | None = None,
) -> Tensor:
    """Compute the gradients [N, 2 Q] of the predictions.

    Parameters
    ----------
    grad : [N, Q]
        Gradients of the charges. Rows need not follow each other.
    predicted, systems, rank, system_ptr, floor, sum_parts
        As for `equilibrate`.
    shared : float64 [B, 2, Q]
        From `equilibrate`.
    """
    check_device(grad)
    n_charges = grad.shape[1]
    grad_predicted = torch.empty_like(predicted)
    grad_excess = torch.empty_like(shared[:, 0])
    with torch.cuda.device_of(grad):
        _excess_gradient_kernel[(len(shared), triton.cdiv(n_charges, _CHANNELS))](
            grad,
            predicted,
            shared if sum_parts is None else None,
            rank,
            system_ptr,
            grad_excess,
            grad.stride(0),
            FLOOR=floor,
            Q=n_charges,
            CHANNELS=_CHANNELS,
            ROWS=_ROWS,
            num_warps=_WARPS,
            **early_launch(grad),
        )
        if sum_parts is not None:
            grad_excess = sum_parts(grad_excess) * shared[:, 1]
        _equilibrate_bwd_kernel[(triton.cdiv(grad.numel(), _ELEMENTS),)](
            grad,
            predicted,
            shared,
            grad_excess,
            systems,
            grad_predicted,
            grad.stride(0),
            grad.numel(),
            Q=n_charges,
            BLOCK=_ELEMENTS,
            **early_launch(grad),
        )
    return grad_predicted
