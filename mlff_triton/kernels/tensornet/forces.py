"""Sums over edges and atoms at the end of a step: forces, virials, energies.

    F_i = sum_e g_rev(e) - g_e      W_i = sum_e r_e (x) g_e      over the edges e that i receives

Sums run in float64, in an order that neither the neighbor list's age nor the sorting of atoms
changes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.types.edges import Edges

_N_TOTALS = tl.constexpr(11)  # of a system: energy, nine of the virial, and the highest status


@triton.jit
def _forces_kernel(
    edge_grad_ptr,
    begin_ptr,
    end_ptr,
    origin_ptr,
    reverse_ptr,
    direction_ptr,
    distance_ptr,
    energies_ptr,
    offsets_ptr,
    order_ptr,
    forces_ptr,
    atoms_ptr,
    n_atoms,
    n_slots,
    BLOCK: tl.constexpr,
):
    atom = tl.program_id(0)
    begin, end = tl.load(begin_ptr + atom), tl.load(end_ptr + atom)
    out = tl.load(order_ptr + atom).to(tl.int64)
    stride = tl.cast(n_slots, tl.int64)
    lane = tl.arange(0, BLOCK)
    zero = tl.zeros([BLOCK], tl.float64)
    fx, fy, fz = zero, zero, zero
    xx, yy, zz, yz, xz, xy = zero, zero, zero, zero, zero, zero
    for start in range(begin, end, BLOCK):
        slot = start + lane
        live = slot < end
        origin = tl.load(origin_ptr + slot, live, other=0)
        opposite = tl.load(reverse_ptr + origin, live, other=0)
        distance = tl.load(distance_ptr + slot, live, other=0.0).to(tl.float64)
        x = tl.load(direction_ptr + slot, live, other=0.0) * distance
        y = tl.load(direction_ptr + stride + slot, live, other=0.0) * distance
        z = tl.load(direction_ptr + 2 * stride + slot, live, other=0.0) * distance
        gx, gy, gz = _load_vector(edge_grad_ptr + origin, stride, live)
        hx, hy, hz = _load_vector(edge_grad_ptr + opposite, stride, live)
        fx, fy, fz = fx + (hx - gx), fy + (hy - gy), fz + (hz - gz)
        xx, yy, zz = xx + x * gx, yy + y * gy, zz + z * gz
        yz, xz, xy = yz + (y * gz + z * gy), xz + (x * gz + z * gx), xy + (x * gy + y * gx)

    tl.store(forces_ptr + 3 * out, tl.sum(fx))
    tl.store(forces_ptr + 3 * out + 1, tl.sum(fy))
    tl.store(forces_ptr + 3 * out + 2, tl.sum(fz))
    stride = tl.cast(n_atoms, tl.int64)
    atoms_ptr += out
    energy = tl.load(energies_ptr + atom).to(tl.float64) + tl.load(offsets_ptr + atom)
    tl.store(atoms_ptr, energy)
    tl.store(atoms_ptr + stride, tl.sum(xx))
    tl.store(atoms_ptr + 2 * stride, tl.sum(yy))
    tl.store(atoms_ptr + 3 * stride, tl.sum(zz))
    tl.store(atoms_ptr + 4 * stride, 0.5 * tl.sum(yz))
    tl.store(atoms_ptr + 5 * stride, 0.5 * tl.sum(xz))
    tl.store(atoms_ptr + 6 * stride, 0.5 * tl.sum(xy))


@triton.jit
def _load_vector(pointer, stride, mask):
    return (
        tl.load(pointer, mask, other=0.0).to(tl.float64),
        tl.load(pointer + stride, mask, other=0.0).to(tl.float64),
        tl.load(pointer + 2 * stride, mask, other=0.0).to(tl.float64),
    )


@triton.jit
def _totals_kernel(
    atoms_ptr,
    status_ptr,
    system_ptr,
    totals_ptr,
    n_atoms,
    BLOCK: tl.constexpr,
):
    system, number = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
    lane = tl.arange(0, BLOCK)
    out = totals_ptr + system * _N_TOTALS + number
    if number == _N_TOTALS - 1:
        worst = tl.zeros([BLOCK], tl.int32)
        for start in range(begin, end, BLOCK):
            atom = start + lane
            worst = tl.maximum(worst, tl.load(status_ptr + atom, atom < end, other=0))
        tl.store(out, tl.max(worst).to(tl.float64))
    else:
        a, b = (number - 1) // 3, (number - 1) % 3
        component = tl.where(a == b, 1 + a, 7 - a - b)  # of xx, yy, zz, yz, xz, xy
        rows = atoms_ptr + tl.cast(n_atoms, tl.int64) * tl.where(number == 0, 0, component)
        total = tl.zeros([BLOCK], tl.float64)
        for start in range(begin, end, BLOCK):
            atom = start + lane
            total += tl.load(rows + atom, atom < end, other=0.0)
        tl.store(out, tl.sum(total))


def forces(
    edge_grad: Tensor,
    edges: Edges,
    energies: Tensor,
    offsets: Tensor,
    order: Tensor,
) -> tuple[Tensor, Tensor]:
    """Forces, and what each atom contributes to its system, in the user's order of atoms.

    Parameters
    ----------
    edge_grad : [3, slots]
        ``dE/dr_e`` at ``edges.origin``.
    edges : Edges
        Neighbors within the cutoff.
    energies : [N]
        Energies from the network, eV.
    offsets : float64 [N]
        Energies that are added to them, eV.
    order : int32 [N]
        The user's index of each atom.

    Returns
    -------
    forces : float64 [N, 3]
        eV/Å.
    atoms : float64 [7, N]
        Energy, and the virial's xx, yy, zz, yz, xz and xy, eV.
    """
    check_device(edge_grad)
    n_atoms = len(order)
    out = edge_grad.new_empty(n_atoms, 3, dtype=torch.float64)
    atoms = edge_grad.new_empty(7, n_atoms, dtype=torch.float64)
    with torch.cuda.device_of(edge_grad):
        _forces_kernel[(n_atoms,)](
            edge_grad,
            edges.slot_begin,
            edges.slot_end,
            edges.origin,
            edges.reverse,
            edges.direction,
            edges.distance,
            energies,
            offsets,
            order,
            out,
            atoms,
            n_atoms,
            len(edges.senders),
            BLOCK=64,
            num_warps=1,
        )
    return out, atoms


def totals(atoms: Tensor, status: Tensor, system_ptr: Tensor) -> Tensor:
    """Sums over the atoms of each system.

    Parameters
    ----------
    atoms : float64 [7, N]
        From `forces`.
    status : int32 [N]
        Bits set by atoms in trouble.
    system_ptr : int32 [B + 1]
        First atom of each system.

    Returns
    -------
    float64 [B, 11]
        Energy, virial (row by row), and the highest status.
    """
    check_device(atoms)
    out = atoms.new_empty(len(system_ptr) - 1, _N_TOTALS.value)
    with torch.cuda.device_of(atoms):
        _totals_kernel[tuple(out.shape)](
            atoms, status, system_ptr, out, atoms.shape[1], BLOCK=1024, num_warps=8
        )
    return out
