"""Real-space part of an Ewald sum over a neighbor list, with its gradients.

    E = C / 2 sum_e q_i q_j erfc(alpha r_e) / r_e      r_e = |r_i - r_j - S_e cell| < cutoff

The list contains each pair in both directions, so a program that owns an atom sees all its pairs:
it adds up the potential and the force, and nothing is stored per edge. Vectors are computed in
float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_integers, check_shape
from mlff_triton.kernels.electrostatics.arguments import (
    check_atoms,
    constants,
    system_pointers,
    systems,
)
from mlff_triton.kernels.electrostatics.derivatives import (
    COLUMNS,
    EnergyGradients,
    empty_gradients,
    energy_operator,
)
from mlff_triton.kernels.electrostatics.reference import ewald_pairs as reference
from mlff_triton.kernels.electrostatics.types import COULOMB, Electrostatics
from mlff_triton.kernels.numerics.error_function import erfc
from mlff_triton.kernels.ops.segment_sum import segment_sum

_COULOMB = tl.constexpr(COULOMB)
_TWO_OVER_ROOT_PI = tl.constexpr(1.1283791670955126)


@triton.jit
def _ewald_pairs_kernel(
    charges_ptr,
    positions_ptr,
    cell_ptr,
    system_ptr,
    row_ptr_ptr,
    senders_ptr,
    shifts_ptr,
    constants_ptr,
    potential_ptr,
    gradient_ptr,
    sums_ptr,
    LANES: tl.constexpr,
):
    """Sum over the edges of an atom. Grid: one program per atom.

    Reads ``charges[N]``, ``positions[N, 3]``, ``cell[B, 3, 3]``, ``system[N]``, ``row_ptr[N + 1]``,
    ``senders[E]``, ``shifts[E, 3]`` and ``constants[2]``, which are the splitting and the squared
    cutoff. Writes ``potential[N]``, ``gradient[N, 3]`` and ``sums[N, 10]``.
    """
    atom = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = charges_ptr.dtype.element_ty
    begin, end = tl.load(row_ptr_ptr + atom), tl.load(row_ptr_ptr + atom + 1)
    charge = tl.load(charges_ptr + atom)
    px = tl.load(positions_ptr + 3 * atom).to(tl.float64)
    py = tl.load(positions_ptr + 3 * atom + 1).to(tl.float64)
    pz = tl.load(positions_ptr + 3 * atom + 2).to(tl.float64)
    cell_ptr += 9 * tl.load(system_ptr + atom).to(tl.int64)
    ax, ay, az = tl.load(cell_ptr), tl.load(cell_ptr + 1), tl.load(cell_ptr + 2)
    bx, by, bz = tl.load(cell_ptr + 3), tl.load(cell_ptr + 4), tl.load(cell_ptr + 5)
    cx, cy, cz = tl.load(cell_ptr + 6), tl.load(cell_ptr + 7), tl.load(cell_ptr + 8)
    alpha, limit = tl.load(constants_ptr).to(dtype), tl.load(constants_ptr + 1).to(dtype)

    potential = tl.zeros([LANES], dtype)
    gx, gy, gz = potential, potential, potential
    tax, tay, taz = potential, potential, potential
    tbx, tby, tbz = potential, potential, potential
    tcx, tcy, tcz = potential, potential, potential
    for start in range(begin, end, LANES):
        edge = (start + tl.arange(0, LANES)).to(tl.int64)
        live = edge < end
        sender = tl.load(senders_ptr + edge, live, other=0).to(tl.int64)
        sa = tl.load(shifts_ptr + 3 * edge, live, other=0).to(tl.float64)
        sb = tl.load(shifts_ptr + 3 * edge + 1, live, other=0).to(tl.float64)
        sc = tl.load(shifts_ptr + 3 * edge + 2, live, other=0).to(tl.float64)
        other = tl.load(charges_ptr + sender, live, other=0.0)
        x = px - tl.load(positions_ptr + 3 * sender, live, other=0.0).to(tl.float64)
        y = py - tl.load(positions_ptr + 3 * sender + 1, live, other=0.0).to(tl.float64)
        z = pz - tl.load(positions_ptr + 3 * sender + 2, live, other=0.0).to(tl.float64)
        x = (x - (sa * ax + sb * bx + sc * cx)).to(dtype)
        y = (y - (sa * ay + sb * by + sc * cy)).to(dtype)
        z = (z - (sa * az + sb * bz + sc * cz)).to(dtype)

        squared = x * x + y * y + z * z
        near = live & ((squared >= limit) == 0)  # NaN stays
        distance = tl.sqrt(tl.where(near, squared, 1.0).to(dtype))
        inverse = 1 / distance
        value, decay = erfc(alpha * distance)
        value = value * inverse
        slope = -(value + _TWO_OVER_ROOT_PI * alpha * decay) * inverse * inverse
        potential += tl.where(near, value * other, 0.0).to(dtype)
        slope = tl.where(near, slope * other, 0.0).to(dtype)
        x, y, z = slope * x, slope * y, slope * z
        sa, sb, sc = sa.to(dtype), sb.to(dtype), sc.to(dtype)
        gx, gy, gz = gx + x, gy + y, gz + z
        tax, tay, taz = tax + sa * x, tay + sa * y, taz + sa * z
        tbx, tby, tbz = tbx + sb * x, tby + sb * y, tbz + sb * z
        tcx, tcy, tcz = tcx + sc * x, tcy + sc * y, tcz + sc * z

    whole = charge.to(tl.float64) * _COULOMB
    half = -0.5 * whole
    total = tl.sum(potential.to(tl.float64)) * _COULOMB
    tl.store(potential_ptr + atom, total)
    tl.store(gradient_ptr + 3 * atom, whole * tl.sum(gx.to(tl.float64)))
    tl.store(gradient_ptr + 3 * atom + 1, whole * tl.sum(gy.to(tl.float64)))
    tl.store(gradient_ptr + 3 * atom + 2, whole * tl.sum(gz.to(tl.float64)))
    sums_ptr += 10 * atom
    tl.store(sums_ptr, 0.5 * charge.to(tl.float64) * total)
    tl.store(sums_ptr + 1, half * tl.sum(tax.to(tl.float64)))
    tl.store(sums_ptr + 2, half * tl.sum(tay.to(tl.float64)))
    tl.store(sums_ptr + 3, half * tl.sum(taz.to(tl.float64)))
    tl.store(sums_ptr + 4, half * tl.sum(tbx.to(tl.float64)))
    tl.store(sums_ptr + 5, half * tl.sum(tby.to(tl.float64)))
    tl.store(sums_ptr + 6, half * tl.sum(tbz.to(tl.float64)))
    tl.store(sums_ptr + 7, half * tl.sum(tcx.to(tl.float64)))
    tl.store(sums_ptr + 8, half * tl.sum(tcy.to(tl.float64)))
    tl.store(sums_ptr + 9, half * tl.sum(tcz.to(tl.float64)))


@energy_operator("ewald_pairs", reference.ewald_pairs)
def _ewald_pairs(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    shifts: Tensor,
    splitting: float,
    cutoff: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return energies [B] and their gradients by charges, positions and cells."""
    out = empty_gradients(charges, positions, cell)
    sums = charges.new_empty(len(charges), COLUMNS, dtype=torch.float64)
    if len(charges):
        with torch.cuda.device_of(charges):
            _ewald_pairs_kernel[(len(charges),)](
                charges.contiguous(),
                positions.contiguous(),
                cell.double().contiguous(),
                system,
                row_ptr,
                senders,
                shifts.contiguous(),
                constants(splitting, cutoff**2, device=charges.device),
                out.charges,
                out.positions,
                sums,
                LANES=32 if torch.version.hip is None else 64,  # as many as a warp has threads
                num_warps=1,
            )
    totals = segment_sum(sums, system_pointers(system, len(cell)))
    out.energy.copy_(totals[:, 0])
    out.cell.copy_(totals[:, 1:].unflatten(1, (3, 3)))
    return out


def ewald_pairs(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    batch: Tensor | None,
    row_ptr: Tensor,
    senders: Tensor,
    shifts: Tensor,
    splitting: float,
    cutoff: float,
) -> Electrostatics:
    """Compute the real-space part of an Ewald sum, reproducibly to the bit.

    Gradients by charges, positions and cell are computed with it, and cost nothing more. They are
    differentiable, too, in plain PyTorch.

    Parameters
    ----------
    charges : [N]
        Partial charges, elementary charges; float32 or float64, in which edges are computed.
    positions : [N, 3]
        Å, float32 or float64.
    cell : [B, 3, 3]
        Lattice vectors as rows, Å; float32 or float64.
    batch : int64 or int32 [N], optional
        System of each atom, ascending, which is not checked; None for one system.
    row_ptr : int64 or int32 [N + 1]
        Row pointers of the neighbor list. It contains each pair in both directions, and may
        contain more pairs than those within the cutoff. Its values are not checked.
    senders : int64 or int32 [E]
        Atom ``j`` of each edge.
    shifts : int8, int32 or int64 [E, 3]
        Lattice translations of ``j``. The cutoff may exceed half the cell, or the cell.
    splitting, cutoff : float
        Of `PMEParameters`.

    Returns
    -------
    Electrostatics

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    check_atoms(charges, positions, cell, batch)
    check_device(charges, row_ptr, senders, shifts)
    check_integers(row_ptr=row_ptr, senders=senders)
    check_shape("row_ptr", row_ptr, (len(charges) + 1,))
    check_shape("senders", senders, ("E",))
    check_shape("shifts", shifts, (len(senders), 3))
    if shifts.dtype not in (torch.int8, torch.int32, torch.int64):
        raise InputError(f"shifts is {shifts.dtype}: use int8, int32 or int64")
    found = EnergyGradients(
        *_ewald_pairs(
            charges,
            positions,
            cell,
            systems(charges, batch),
            row_ptr.contiguous(),
            senders.contiguous(),
            shifts,
            splitting,
            cutoff,
        )
    )
    return Electrostatics(found.energy, found.charges)
