"""Charges on a mesh, and potentials between its points, by B-splines.

An atom at ``u`` in units of mesh points has the weight ``M(u - k)`` at point ``k``, for the p
points up to ``floor(u)`` in each direction. Charges are added to mesh points as integers, so that
sums do not depend on their order and all atoms can add at once. Their unit is so small that the sum
of the sizes of all charges just fits into 64 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.arguments import constants
from mlff_triton.kernels.electrostatics.splines import spline, spline_slope
from mlff_triton.kernels.neighbors.bins import plane
from mlff_triton.kernels.ops.segment_sum import segment_sum
from mlff_triton.kernels.types.charges import SumParts

_FAR = tl.constexpr(1e9)  # mesh points from the origin, which int32 can hold
_BITS = tl.constexpr(61)  # of the largest sum of units
_LEAST = tl.constexpr(1e-200)  # elementary charges, in place of none
_ATOMS, _CONVERTED = 32, 1024  # atoms and mesh points per program
_LOCATED = 128  # atoms per program
_POINTS = 8  # power of two that holds a spline


class Places(NamedTuple):
    """Atoms on a mesh.

    Attributes
    ----------
    planes : float64 [B, 3, 3]
        Gradients of the three fractional coordinates, 1/Å.
    volume : float64 [B]
        Volumes of the cells, Å^3.
    base : int32 [3, N]
        Mesh point below each atom.
    fraction : [3, N]
        Distance from it, from 0 to 1.
    """

    planes: Tensor
    volume: Tensor
    base: Tensor
    fraction: Tensor


@triton.jit
def _planes_kernel(cell_ptr, planes_ptr, volume_ptr):
    """Invert cells. Grid: one program per system.

    Reads ``cell[B, 3, 3]``. Writes ``planes[B, 3, 3]`` and ``volume[B]``.
    """
    system = tl.program_id(0).to(tl.int64)
    cell_ptr += 9 * system
    for d in tl.static_range(3):
        x, y, z, height = plane(cell_ptr, d)
        tl.store(planes_ptr + 9 * system + 3 * d, x)
        tl.store(planes_ptr + 9 * system + 3 * d + 1, y)
        tl.store(planes_ptr + 9 * system + 3 * d + 2, z)
        if d == 0:
            bx, by, bz = tl.load(cell_ptr + 3), tl.load(cell_ptr + 4), tl.load(cell_ptr + 5)
            cx, cy, cz = tl.load(cell_ptr + 6), tl.load(cell_ptr + 7), tl.load(cell_ptr + 8)
            nx, ny, nz = by * cz - bz * cy, bz * cx - bx * cz, bx * cy - by * cx
            tl.store(volume_ptr + system, tl.sqrt(nx * nx + ny * ny + nz * nz) * height)


@triton.jit
def _locate_kernel(
    positions_ptr,
    system_ptr,
    planes_ptr,
    base_ptr,
    fraction_ptr,
    n_atoms,
    k0,
    k1,
    k2,
    BLOCK: tl.constexpr,
):
    """Find the mesh point below each atom. Grid: one program per BLOCK atoms.

    Reads ``positions[N, 3]``, ``system[N]`` and ``planes[B, 3, 3]``. Writes ``base[3, N]`` and
    ``fraction[3, N]``.
    """
    atom = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = atom < n_atoms
    system = tl.load(system_ptr + atom, mask, other=0).to(tl.int64)
    x = tl.load(positions_ptr + 3 * atom, mask, other=0.0).to(tl.float64)
    y = tl.load(positions_ptr + 3 * atom + 1, mask, other=0.0).to(tl.float64)
    z = tl.load(positions_ptr + 3 * atom + 2, mask, other=0.0).to(tl.float64)
    for d in tl.static_range(3):
        size = k0 if d == 0 else (k1 if d == 1 else k2)
        normal = planes_ptr + 9 * system + 3 * d
        scaled = tl.load(normal, mask, other=0.0) * x
        scaled += tl.load(normal + 1, mask, other=0.0) * y
        scaled += tl.load(normal + 2, mask, other=0.0) * z
        scaled *= size
        below = tl.floor(scaled)
        is_near = tl.abs(below) < _FAR
        fraction = tl.maximum(scaled - below, 0.0)  # -1e-16 if a fused multiply-add subtracts
        fraction = tl.where(is_near, fraction, float("nan"))
        below = tl.where(is_near, below, 0.0).to(tl.int32) % size
        below = tl.where(below < 0, below + size, below)
        offset = d * tl.cast(n_atoms, tl.int64) + atom
        tl.store(base_ptr + offset, below, mask)
        tl.store(fraction_ptr + offset, fraction.to(fraction_ptr.dtype.element_ty), mask)


@triton.jit
def _units(total):
    """Return the number of units in one elementary charge, given the sum of the sizes of charges.

    It is NaN if the sum is not finite.
    """
    total = tl.where(total < _LEAST, _LEAST, tl.where(total < float("inf"), total, float("nan")))
    return tl.exp2(_BITS - tl.ceil(tl.log2(total)))


@triton.jit
def _spread_kernel(
    charges_ptr,
    total_ptr,
    system_ptr,
    base_ptr,
    fraction_ptr,
    sums_ptr,
    offset_ptr,
    n_atoms,
    k0,
    k1,
    k2,
    ORDER: tl.constexpr,
    POINTS: tl.constexpr,
    ATOMS: tl.constexpr,
):
    """Add charges to mesh points. Grid: one program per ATOMS atoms.

    Reads ``charges[N]``, ``system[N]``, `Places` and ``total[B]``, from which `_units` follow. Adds
    to ``sums[B, K0, K1, K2]``. Writes NaN to ``offset[B]`` if an atom of a system has no place.
    """
    atom = tl.program_id(0).to(tl.int64) * ATOMS + tl.arange(0, ATOMS)
    mask = atom < n_atoms
    n = tl.cast(n_atoms, tl.int64)
    system = tl.load(system_ptr + atom, mask, other=0).to(tl.int64)
    charge = tl.load(charges_ptr + atom, mask, other=0.0)
    bx = tl.load(base_ptr + atom, mask, other=0)
    by = tl.load(base_ptr + n + atom, mask, other=0)
    bz = tl.load(base_ptr + 2 * n + atom, mask, other=0)[:, None]
    fx = tl.load(fraction_ptr + atom, mask, other=0.0)
    fy = tl.load(fraction_ptr + n + atom, mask, other=0.0)
    fz = tl.load(fraction_ptr + 2 * n + atom, mask, other=0.0)
    units = _units(tl.load(total_ptr + system, mask, other=0.0))
    scaled = charge.to(tl.float64) * units
    has_place = fx + fy + fz >= 0
    tl.store(offset_ptr + system, float("nan"), mask & (has_place == 0))

    step = tl.arange(0, POINTS)[None, :]
    z = bz - step
    z = tl.where(z < 0, z + k2, z)
    live = (mask & has_place & (tl.abs(scaled) >= 0))[:, None] & (step < ORDER)
    along_z = spline(fz[:, None], step, ORDER)
    for i in tl.static_range(ORDER):
        x = tl.where(bx < i, bx - i + k0, bx - i)
        wx = spline(fx, i, ORDER)
        for j in tl.static_range(ORDER):
            y = tl.where(by < j, by - j + k1, by - j)
            weight = (wx * spline(fy, j, ORDER))[:, None] * along_z
            share = tl.where(live, tl.floor(scaled[:, None] * weight + 0.5), 0.0).to(tl.int64)
            line = ((system * k0 + x) * k1 + y)[:, None] * k2
            tl.atomic_add(sums_ptr + line + z, share, live, sem="relaxed")


@triton.jit
def _convert_kernel(sums_ptr, total_ptr, offset_ptr, mesh_ptr, n_points, BLOCK: tl.constexpr):
    """Convert units to charges. Grid: (blocks of points, systems).

    Reads ``sums[B, points]``, ``total[B]`` and ``offset[B]``, which is added. Writes
    ``mesh[B, points]``.
    """
    system = tl.program_id(1).to(tl.int64)
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = point < n_points
    place = system * n_points + point
    charge = tl.load(sums_ptr + place, mask, other=0).to(tl.float64)
    charge = charge * (1 / _units(tl.load(total_ptr + system))) + tl.load(offset_ptr + system)
    tl.store(mesh_ptr + place, charge.to(mesh_ptr.dtype.element_ty), mask)


@triton.jit
def _gather_kernel(
    charges_ptr,
    positions_ptr,
    system_ptr,
    planes_ptr,
    base_ptr,
    fraction_ptr,
    mesh_ptr,
    self_ptr,
    potential_ptr,
    gradient_ptr,
    sums_ptr,
    n_atoms,
    k0,
    k1,
    k2,
    ORDER: tl.constexpr,
    POINTS: tl.constexpr,
    ATOMS: tl.constexpr,
):
    """Interpolate potentials and their gradients. Grid: one program per ATOMS atoms.

    Reads ``charges[N]``, ``positions[N, 3]``, ``system[N]``, `Places`, ``mesh[B, K0, K1, K2]`` and
    the potential ``self[1]`` of a unit charge at itself. Writes ``potential[N]``,
    ``gradient[N, 3]`` and ``sums[N, 10]``: energies, and gradients by the cell through fractional
    coordinates.
    """
    atom = tl.program_id(0).to(tl.int64) * ATOMS + tl.arange(0, ATOMS)
    mask = atom < n_atoms
    n = tl.cast(n_atoms, tl.int64)
    system = tl.load(system_ptr + atom, mask, other=0).to(tl.int64)
    bx = tl.load(base_ptr + atom, mask, other=0)
    by = tl.load(base_ptr + n + atom, mask, other=0)
    bz = tl.load(base_ptr + 2 * n + atom, mask, other=0)[:, None]
    fx = tl.load(fraction_ptr + atom, mask, other=0.0)
    fy = tl.load(fraction_ptr + n + atom, mask, other=0.0)
    fz = tl.load(fraction_ptr + 2 * n + atom, mask, other=0.0)[:, None]
    step = tl.arange(0, POINTS)[None, :]
    z = bz - step
    z = tl.where(z < 0, z + k2, z)

    value = tl.zeros([ATOMS, POINTS], fx.dtype)  # of lines along z, and its slopes along x and y
    along_x, along_y = value, value
    for i in tl.static_range(ORDER):
        x = tl.where(bx < i, bx - i + k0, bx - i)
        wx, sx = spline(fx, i, ORDER)[:, None], spline_slope(fx, i, ORDER)[:, None]
        for j in tl.static_range(ORDER):
            y = tl.where(by < j, by - j + k1, by - j)
            wy, sy = spline(fy, j, ORDER)[:, None], spline_slope(fy, j, ORDER)[:, None]
            line = ((system * k0 + x) * k1 + y)[:, None] * k2
            phi = tl.load(mesh_ptr + line + z, mask[:, None] & (step < ORDER), other=0.0)
            value += wx * wy * phi
            along_x += sx * wy * phi
            along_y += wx * sy * phi
    wz, sz = spline(fz, step, ORDER), spline_slope(fz, step, ORDER)
    charge = tl.load(charges_ptr + atom, mask, other=0.0).to(tl.float64)
    potential = tl.sum((value * wz).to(tl.float64), 1) - tl.load(self_ptr) * charge
    gu = tl.sum((along_x * wz).to(tl.float64), 1) * k0 * charge
    gv = tl.sum((along_y * wz).to(tl.float64), 1) * k1 * charge
    gw = tl.sum((value * sz).to(tl.float64), 1) * k2 * charge

    planes_ptr += 9 * system
    tl.store(potential_ptr + atom, potential, mask)
    tl.store(sums_ptr + 10 * atom, 0.5 * charge * potential, mask)
    px = tl.load(positions_ptr + 3 * atom, mask, other=0.0).to(tl.float64)
    py = tl.load(positions_ptr + 3 * atom + 1, mask, other=0.0).to(tl.float64)
    pz = tl.load(positions_ptr + 3 * atom + 2, mask, other=0.0).to(tl.float64)
    for c in tl.static_range(3):
        nu = tl.load(planes_ptr + c, mask, other=0.0)
        nv = tl.load(planes_ptr + 3 + c, mask, other=0.0)
        nw = tl.load(planes_ptr + 6 + c, mask, other=0.0)
        gradient = gu * nu + gv * nv + gw * nw
        tl.store(gradient_ptr + 3 * atom + c, gradient, mask)
        for d in tl.static_range(3):
            u = tl.load(planes_ptr + 3 * d, mask, other=0.0) * px
            u += tl.load(planes_ptr + 3 * d + 1, mask, other=0.0) * py
            u += tl.load(planes_ptr + 3 * d + 2, mask, other=0.0) * pz
            tl.store(sums_ptr + 10 * atom + 1 + 3 * d + c, -u * gradient, mask)


def locate(
    positions: Tensor, cell: Tensor, system: Tensor, mesh: tuple[int, int, int], dtype: torch.dtype
) -> Places:
    """Find atoms on a mesh, without waiting for the GPU.

    Parameters
    ----------
    positions : [N, 3]
        Å.
    cell : float64 [B, 3, 3]
        Lattice vectors as rows, Å.
    system : int [N]
        System of each atom.
    mesh : tuple of int
        Mesh points along each lattice vector.
    dtype : torch.dtype
        Of the fractions.

    Raises
    ------
    InputError
        If the meshes of all systems have more than 2^31 points.
    """
    n_atoms, n_systems = len(positions), len(cell)
    if n_systems * mesh[0] * mesh[1] * mesh[2] >= 2**31:
        raise InputError(
            f"{n_systems} meshes of {list(mesh)} points are too many: divide the batch, or take "
            "larger errors or cutoffs"
        )
    planes, volume = torch.empty_like(cell), cell.new_empty(n_systems)
    base = system.new_empty(3, n_atoms, dtype=torch.int32)
    fraction = positions.new_empty(3, n_atoms, dtype=dtype)
    with torch.cuda.device_of(positions):
        _planes_kernel[(n_systems,)](cell, planes, volume)
        if n_atoms:
            _locate_kernel[(triton.cdiv(n_atoms, _LOCATED),)](
                positions, system, planes, base, fraction, n_atoms, *mesh, BLOCK=_LOCATED
            )
    return Places(planes, volume, base, fraction)


def spread(
    charges: Tensor,
    system: Tensor,
    pointers: Tensor,
    places: Places,
    mesh: tuple[int, int, int],
    order: int,
    sum_parts: SumParts | None = None,
) -> Tensor:
    """Return the charges [N] on the mesh, [B, K0, K1, K2], given the `system_pointers`.

    They are rounded to 2^-60 of the sum of their sizes in a system. The mesh of a system is NaN if
    one of its charges is not finite or has no place. If these are charges of a part of each system,
    ``sum_parts`` sums values over all parts, whose meshes have the same bits.
    """
    n_atoms, n_systems, n_points = len(charges), len(places.planes), mesh[0] * mesh[1] * mesh[2]
    total = segment_sum(charges.abs(), pointers, "float64")
    if sum_parts is not None:
        total = sum_parts(total)
    sums = torch.zeros(n_systems, n_points, dtype=torch.int64, device=charges.device)
    offset = torch.zeros_like(places.volume)
    out = charges.new_empty(n_systems, *mesh)
    with torch.cuda.device_of(charges):
        if n_atoms:
            _spread_kernel[(triton.cdiv(n_atoms, _ATOMS),)](
                charges,
                total,
                system,
                places.base,
                places.fraction,
                sums,
                offset,
                n_atoms,
                *mesh,
                ORDER=order,
                POINTS=_POINTS,
                ATOMS=_ATOMS,
            )
    if sum_parts is not None:
        sums, offset = sum_parts(sums), sum_parts(offset)
    blocks = triton.cdiv(n_points, _CONVERTED)
    with torch.cuda.device_of(charges):
        _convert_kernel[(blocks, n_systems)](sums, total, offset, out, n_points, BLOCK=_CONVERTED)
    return out


def gather(
    potentials: Tensor,
    charges: Tensor,
    positions: Tensor,
    system: Tensor,
    places: Places,
    self_potential: float,
    order: int,
    outputs: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Interpolate the potentials [B, K0, K1, K2] of a mesh at atoms.

    Parameters
    ----------
    self_potential : float
        Potential of a unit charge at itself, which is subtracted, V.
    outputs : tuple of tensor
        Potentials [N], gradients by position [N, 3] and sums, float64 [N, 10]: energies, and
        gradients by the cell, which are written.
    """
    n_atoms = len(charges)
    if not n_atoms:
        return
    with torch.cuda.device_of(charges):
        _gather_kernel[(triton.cdiv(n_atoms, _ATOMS),)](
            charges,
            positions,
            system,
            places.planes,
            places.base,
            places.fraction,
            potentials,
            constants(self_potential, device=charges.device),
            *outputs,
            n_atoms,
            *potentials.shape[1:],
            ORDER=order,
            POINTS=_POINTS,
            ATOMS=_ATOMS,
        )
