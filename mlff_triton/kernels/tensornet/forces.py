"""Sums over edges and atoms at the end of a step: forces, virials, energies.

    F_i = sum_e g_rev(e) - g_e      W_i = sum_e r_e (x) g_e      over the edges e that i receives

Sums are in float64, in an order that depends neither on the age of the neighbor list nor on the
sorting of atoms.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.types.edges import Edges

_N_TOTALS = tl.constexpr(11)  # per system: energy, nine entries of the virial, highest status


@triton.jit
def _forces_kernel(
    edge_grad_ptr,
    slot_begin_ptr,
    slot_end_ptr,
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
    HALVES: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum the force, virial and energy of an atom. Grid: one program per atom.

    Reads ``edge_grad[3, slots]``; ``slot_begin[N]``, ``slot_end[N]``, ``origin[slots]``,
    ``reverse[slots]``, ``direction[3, slots]`` and ``distance[slots]`` of `Edges`; ``energies[N]``,
    ``offsets[N]`` and ``order[N]``. Writes ``forces[N, 3]`` and ``atoms[7, N]``, in user order, or
    adds to what they contain with ADD.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = tl.program_id(0)
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
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
        if HALVES:
            gx, gy, gz = 0.5 * (gx - hx), 0.5 * (gy - hy), 0.5 * (gz - hz)
        xx, yy, zz = xx + x * gx, yy + y * gy, zz + z * gz
        yz, xz, xy = yz + (y * gz + z * gy), xz + (x * gz + z * gx), xy + (x * gy + y * gx)

    _write(forces_ptr + 3 * out, tl.sum(fx), ADD)
    _write(forces_ptr + 3 * out + 1, tl.sum(fy), ADD)
    _write(forces_ptr + 3 * out + 2, tl.sum(fz), ADD)
    stride = tl.cast(n_atoms, tl.int64)
    atoms_ptr += out
    energy = tl.load(energies_ptr + atom).to(tl.float64) + tl.load(offsets_ptr + atom)
    _write(atoms_ptr, energy, ADD)
    _write(atoms_ptr + stride, tl.sum(xx), ADD)
    _write(atoms_ptr + 2 * stride, tl.sum(yy), ADD)
    _write(atoms_ptr + 3 * stride, tl.sum(zz), ADD)
    _write(atoms_ptr + 4 * stride, 0.5 * tl.sum(yz), ADD)
    _write(atoms_ptr + 5 * stride, 0.5 * tl.sum(xz), ADD)
    _write(atoms_ptr + 6 * stride, 0.5 * tl.sum(xy), ADD)


@triton.jit
def _write(pointer, value, ADD: tl.constexpr):
    """Store a value, or add it to the one that is there."""
    if ADD:
        value += tl.load(pointer)
    tl.store(pointer, value)


@triton.jit
def _load_vector(pointer, stride, mask):
    """Load three float64 blocks [BLOCK], ``stride`` apart."""
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
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum over the atoms of each system. Grid: one program per system and total.

    Reads ``atoms[7, N]``, ``status[N]`` and the first atom ``system[B + 1]`` of each system. Writes
    ``totals[B, 11]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    system, column = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
    lane = tl.arange(0, BLOCK)
    out = totals_ptr + system * _N_TOTALS + column
    if column == _N_TOTALS - 1:
        worst = tl.zeros([BLOCK], tl.int32)
        for start in range(begin, end, BLOCK):
            atom = start + lane
            worst = tl.maximum(worst, tl.load(status_ptr + atom, atom < end, other=0))
        tl.store(out, tl.max(worst).to(tl.float64))
    else:
        a, b = (column - 1) // 3, (column - 1) % 3
        component = tl.where(a == b, 1 + a, 7 - a - b)  # of xx, yy, zz, yz, xz, xy
        rows = atoms_ptr + tl.cast(n_atoms, tl.int64) * tl.where(column == 0, 0, component)
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
    halves: bool = False,
    others: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute forces, and the contributions of each atom to its system, in the user's order.

    Parameters
    ----------
    edge_grad : [3, slots]
        ``dE/dr_e``, indexed by ``edges.origin``.
    edges : Edges
        Edges within the cutoff.
    energies : [N]
        Energies from the network, eV.
    offsets : float64 [N]
        Constant energies of the atoms, added to the energies of the network, eV.
    order : int32 [N]
        The user's index of each atom.
    halves : bool
        If True, half the virial of each edge goes to either end, and not all to the receiver.
    others : (float64 [N, 3], float64 [7, N]), optional
        Results of another energy, to which these are added in place.

    Returns
    -------
    forces : float64 [N, 3]
        eV/Å.
    atoms : float64 [7, N]
        Energy, and the components xx, yy, zz, yz, xz and xy of the virial, eV.
    """
    check_device(edge_grad)
    n_atoms = len(order)
    if others is None:
        out = edge_grad.new_empty(n_atoms, 3, dtype=torch.float64)
        atoms = edge_grad.new_empty(7, n_atoms, dtype=torch.float64)
    else:
        out, atoms = others
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
            HALVES=halves,
            ADD=others is not None,
            BLOCK=64,
            num_warps=1,
            **early_launch(edge_grad),
        )
    return out, atoms


def totals(atoms: Tensor, status: Tensor, system_ptr: Tensor) -> Tensor:
    """Sum over the atoms of each system.

    Parameters
    ----------
    atoms : float64 [7, N]
        From `forces`.
    status : int32 [N]
        Status bits of each atom, see `mlff_triton.kernels.types.status`.
    system_ptr : int32 [B + 1]
        First atom of each system.

    Returns
    -------
    float64 [B, 11]
        Energy, virial row by row, and highest status.
    """
    check_device(atoms)
    out = atoms.new_empty(len(system_ptr) - 1, _N_TOTALS.value)
    with torch.cuda.device_of(atoms):
        _totals_kernel[tuple(out.shape)](
            atoms,
            status,
            system_ptr,
            out,
            atoms.shape[1],
            BLOCK=1024,
            num_warps=8,
            **early_launch(atoms),
        )
    return out
