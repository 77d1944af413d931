"""Sums over edges and atoms at the end of a step: see `kernels.tensornet.reference.forces`."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.types.edges import Edges


def forces(
    edge_grad: Tensor,
    edges: Edges,
    energies: Tensor,
    offsets: Tensor,
    order: Tensor,
    halves: bool = False,
    others: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute forces [N, 3], and energies and virials of atoms [7, N], in the user's order."""
    n_atoms = len(order)
    found = torch.empty(n_atoms, 3, dtype=torch.float64)
    atoms = torch.empty(7, n_atoms, dtype=torch.float64)
    slots = edges.slot_begin, edges.slot_end, edges.origin, edges.reverse
    arrays = edge_grad, *slots, edges.direction, edges.distance, energies, offsets, order
    run(_forces, n_atoms, *arrays, halves, found, atoms)
    return (found, atoms) if others is None else (others[0] + found, others[1] + atoms)


def totals(atoms: Tensor, status: Tensor, system_ptr: Tensor) -> Tensor:
    """Sum over the atoms of each system to [B, 11]: energy, virial row by row, highest status."""
    n_systems = len(system_ptr) - 1
    out = torch.empty(n_systems, 11, dtype=torch.float64)
    run(_totals, n_systems, atoms, status, system_ptr, out)
    return out


@loop
def _totals(atoms, status, system_ptr, out, first, last):
    for system in range(first, last):
        energy = xx = yy = zz = yz = xz = xy = 0.0
        worst = 0
        for i in range(system_ptr[system], system_ptr[system + 1]):
            energy += atoms[0, i]
            xx += atoms[1, i]
            yy += atoms[2, i]
            zz += atoms[3, i]
            yz += atoms[4, i]
            xz += atoms[5, i]
            xy += atoms[6, i]
            worst = max(worst, status[i])
        out[system, 0] = energy
        out[system, 1], out[system, 2], out[system, 3] = xx, xy, xz
        out[system, 4], out[system, 5], out[system, 6] = xy, yy, yz
        out[system, 7], out[system, 8], out[system, 9] = xz, yz, zz
        out[system, 10] = worst


@loop
def _forces(
    edge_grad, slot_begin, slot_end, origin, reverse, direction, distance,
    energies, offsets, order, halves, forces, atoms, first, last,
):  # fmt: skip
    for i in range(first, last):
        fx = fy = fz = xx = yy = zz = yz = xz = xy = 0.0
        last_slot = slot_end[i] if i < len(slot_begin) else 0
        for e in range(slot_begin[i] if i < len(slot_begin) else 0, last_slot):
            k = origin[e]
            m = reverse[k]
            gx, gy, gz = float(edge_grad[0, k]), float(edge_grad[1, k]), float(edge_grad[2, k])
            dx, dy, dz = edge_grad[0, m] - gx, edge_grad[1, m] - gy, edge_grad[2, m] - gz
            fx += dx
            fy += dy
            fz += dz
            if halves:
                gx, gy, gz = -dx / 2, -dy / 2, -dz / 2
            d = float(distance[e])
            x, y, z = direction[0, e] * d, direction[1, e] * d, direction[2, e] * d
            xx += x * gx
            yy += y * gy
            zz += z * gz
            yz += (y * gz + z * gy) / 2
            xz += (x * gz + z * gx) / 2
            xy += (x * gy + y * gx) / 2
        k = order[i]
        forces[k, 0], forces[k, 1], forces[k, 2] = fx, fy, fz
        atoms[0, k] = energies[i] + offsets[i]
        atoms[1, k], atoms[2, k], atoms[3, k] = xx, yy, zz
        atoms[4, k], atoms[5, k], atoms[6, k] = yz, xz, xy
