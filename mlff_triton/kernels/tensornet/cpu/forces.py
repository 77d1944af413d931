"""Sums over edges and atoms at the end of a step: see `kernels.tensornet.reference.forces`."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.algebra import algebra, double
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


@algebra
def _add_atom(sums, atoms, i):
    """Add the energy and the virial of an atom to those of its system."""
    return tuple(value + atoms[k, i] for k, value in enumerate(sums))


@algebra
def _write_totals(out, system, sums, worst):
    energy, xx, yy, zz, yz, xz, xy = sums
    virial = xx, xy, xz, xy, yy, yz, xz, yz, zz
    for k, value in enumerate((energy, *virial, worst)):
        out[system, k] = value


@loop
def _totals(atoms, status, system_ptr, out, first, last):
    for system in range(first, last):
        sums, worst = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0
        for i in range(system_ptr[system], system_ptr[system + 1]):
            sums = _add_atom(sums, atoms, i)
            if status[i] > worst:
                worst = status[i]
        _write_totals(out, system, sums, worst)


@algebra
def _gradient(edge_grad, k):
    """Return the gradient with respect to an edge, in float64."""
    return double(edge_grad[0, k]), double(edge_grad[1, k]), double(edge_grad[2, k])


@algebra
def _minus(a, b):
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


@algebra
def _add_edge(sums, force, gradient, direction, distance, e):
    """Add the force along an edge and its share in the virial, from its gradient."""
    dx, dy, dz = force
    gx, gy, gz = gradient
    d = double(distance[e])
    x, y, z = direction[0, e] * d, direction[1, e] * d, direction[2, e] * d
    fx, fy, fz, xx, yy, zz, yz, xz, xy = sums
    return (
        fx + dx,
        fy + dy,
        fz + dz,
        xx + x * gx,
        yy + y * gy,
        zz + z * gz,
        yz + (y * gz + z * gy) / 2,
        xz + (x * gz + z * gx) / 2,
        xy + (x * gy + y * gx) / 2,
    )


@algebra
def _half_back(force):
    return -force[0] / 2, -force[1] / 2, -force[2] / 2


@algebra
def _write_atom(forces, atoms, k, sums, energy):
    fx, fy, fz, xx, yy, zz, yz, xz, xy = sums
    forces[k, 0], forces[k, 1], forces[k, 2] = fx, fy, fz
    atoms[0, k], atoms[1, k], atoms[2, k], atoms[3, k] = energy, xx, yy, zz
    atoms[4, k], atoms[5, k], atoms[6, k] = yz, xz, xy


@loop
def _forces(
    edge_grad, slot_begin, slot_end, origin, reverse, direction, distance,
    energies, offsets, order, halves, forces, atoms, first, last,
):  # fmt: skip
    for i in range(first, last):
        sums = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        begin = end = 0
        if i < len(slot_begin):
            begin, end = slot_begin[i], slot_end[i]
        for e in range(begin, end):
            k = origin[e]
            gradient = _gradient(edge_grad, k)
            force = _minus(_gradient(edge_grad, reverse[k]), gradient)
            if halves:
                gradient = _half_back(force)
            sums = _add_edge(sums, force, gradient, direction, distance, e)
        _write_atom(forces, atoms, order[i], sums, energies[i] + offsets[i])
