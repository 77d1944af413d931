"""Charges on a mesh, and potentials between its points, by B-splines.

An atom at ``u`` in units of mesh points has the weight ``M(u - k)`` at point ``k``, for the p
points up to ``floor(u)`` in each direction. Mesh points are not written by atoms: a program owns a
tile of points and sums over the atoms near it, in an order that depends on nothing but the input.

Atoms are sorted in bins of 4 x 4 x 4 mesh points. Bins that follow each other along the third
direction are consecutive, so the atoms near a tile are a few ranges. Weights are products of three
factors, and the sum over atoms is a matrix product:

    mesh[z, (x, y)] = sum_a wz[z, a] (q_a wx[a, x] wy[a, y])
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
from mlff_triton.kernels.electrostatics.types import BIN
from mlff_triton.kernels.neighbors.bins import plane
from mlff_triton.kernels.numerics.product import exact_precision

_BIN = tl.constexpr(BIN)
_FAR = tl.constexpr(1e9)  # mesh points from the origin, which int32 can hold
_TILE = 8, 8, 16  # mesh points per program
_CHUNK = 16  # atoms per product
_LOCATED, _GATHERED = 128, 32  # atoms per program
_POINTS = 8  # power of two that holds a spline


class Places(NamedTuple):
    """Atoms on a mesh, sorted by bin.

    Attributes
    ----------
    planes : float64 [B, 3, 3]
        Gradients of the three fractional coordinates, 1/Å.
    volume : float64 [B]
        Volumes of the cells, Å^3.
    base : int32 [3, N]
        Mesh point below each atom, in the user's order.
    fraction : [3, N]
        Distance from it, from 0 to 1.
    order : int64 [N]
        User's index of each sorted atom.
    starts : int32 [bins + 1]
        First sorted atom of each bin.
    """

    planes: Tensor
    volume: Tensor
    base: Tensor
    fraction: Tensor
    order: Tensor
    starts: Tensor


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
    bins_ptr,
    n_atoms,
    k0,
    k1,
    k2,
    BLOCK: tl.constexpr,
):
    """Find the mesh point below each atom, and its bin. Grid: one program per BLOCK atoms.

    Reads ``positions[N, 3]``, ``system[N]`` and ``planes[B, 3, 3]``. Writes ``base[3, N]``,
    ``fraction[3, N]`` and ``bins[N]``.
    """
    atom = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = atom < n_atoms
    system = tl.load(system_ptr + atom, mask, other=0).to(tl.int64)
    x = tl.load(positions_ptr + 3 * atom, mask, other=0.0).to(tl.float64)
    y = tl.load(positions_ptr + 3 * atom + 1, mask, other=0.0).to(tl.float64)
    z = tl.load(positions_ptr + 3 * atom + 2, mask, other=0.0).to(tl.float64)
    index = system
    for d in tl.static_range(3):
        size = k0 if d == 0 else (k1 if d == 1 else k2)
        normal = planes_ptr + 9 * system + 3 * d
        scaled = tl.load(normal, mask, other=0.0) * x
        scaled += tl.load(normal + 1, mask, other=0.0) * y
        scaled += tl.load(normal + 2, mask, other=0.0) * z
        scaled *= size
        below = tl.floor(scaled)
        is_near = tl.abs(below) < _FAR
        fraction = tl.where(is_near, scaled - below, float("nan"))
        below = tl.where(is_near, below, 0.0).to(tl.int32) % size
        below = tl.where(below < 0, below + size, below)
        offset = d * tl.cast(n_atoms, tl.int64) + atom
        tl.store(base_ptr + offset, below, mask)
        tl.store(fraction_ptr + offset, fraction.to(fraction_ptr.dtype.element_ty), mask)
        index = index * (size // _BIN) + below // _BIN
    tl.store(bins_ptr + atom, index.to(tl.int32), mask)


@triton.jit
def _weights(base, fraction, point, size, ORDER: tl.constexpr):
    """Return the weights of atoms at mesh points; zero beyond their splines."""
    step = base - point
    return spline(fraction, tl.where(step < 0, step + size, step), ORDER)


@triton.jit
def _spread_kernel(
    charges_ptr,
    base_ptr,
    fraction_ptr,
    order_ptr,
    starts_ptr,
    mesh_ptr,
    n_atoms,
    k0,
    k1,
    k2,
    ORDER: tl.constexpr,
    X: tl.constexpr,
    Y: tl.constexpr,
    Z: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum the charges near a tile of mesh points. Grid: (tiles of a system, systems).

    Reads ``charges[N]`` and `Places`. Writes ``mesh[B, K0, K1, K2]``.
    """
    dtype: tl.constexpr = charges_ptr.dtype.element_ty
    system = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0)
    tiles_1, tiles_2 = tl.cdiv(k1, Y), tl.cdiv(k2, Z)
    x0 = tile // (tiles_1 * tiles_2) * X
    y0 = tile // tiles_2 % tiles_1 * Y
    z0 = tile % tiles_2 * Z
    x = x0 + tl.arange(0, X)
    y = y0 + tl.arange(0, Y)
    z = z0 + tl.arange(0, Z)

    # The atoms of a point lie in the ORDER - 1 points above it, or at it.
    bins_0, bins_1, bins_2 = k0 // _BIN, k1 // _BIN, k2 // _BIN
    count_0 = tl.minimum(bins_0, (X + ORDER - 1 + _BIN - 1) // _BIN)
    count_1 = tl.minimum(bins_1, (Y + ORDER - 1 + _BIN - 1) // _BIN)
    count_2 = tl.minimum(bins_2, (Z + ORDER - 1 + _BIN - 1) // _BIN)
    first_2 = z0 // _BIN
    beyond = first_2 + count_2 - bins_2  # bins that continue at the opposite face
    n = tl.cast(n_atoms, tl.int64)
    total = tl.zeros([Z, X * Y], dtype)
    for row in range(count_0 * count_1):
        bin_0 = (x0 // _BIN + row // count_1) % bins_0
        bin_1 = (y0 // _BIN + row % count_1) % bins_1
        first_bin = ((system * bins_0 + bin_0) * bins_1 + bin_1) * bins_2
        for part in range(tl.where(beyond > 0, 2, 1)):
            first = tl.where(part == 0, first_2, 0)
            last = tl.where(part == 0, tl.minimum(first_2 + count_2, bins_2), beyond)
            begin = tl.load(starts_ptr + first_bin + first)
            end = tl.load(starts_ptr + first_bin + last)
            for start in range(begin, end, CHUNK):
                slot = start + tl.arange(0, CHUNK)
                live = slot < end
                atom = tl.load(order_ptr + slot, live, other=0).to(tl.int64)
                charge = tl.load(charges_ptr + atom, live, other=0.0)
                bx = tl.load(base_ptr + atom, live, other=0)[:, None]
                by = tl.load(base_ptr + n + atom, live, other=0)[:, None]
                bz = tl.load(base_ptr + 2 * n + atom, live, other=0)[None, :]
                fx = tl.load(fraction_ptr + atom, live, other=0.0)[:, None]
                fy = tl.load(fraction_ptr + n + atom, live, other=0.0)[:, None]
                fz = tl.load(fraction_ptr + 2 * n + atom, live, other=0.0)[None, :]
                wx = charge[:, None] * _weights(bx, fx, x[None, :], k0, ORDER)  # [CHUNK, X]
                wy = _weights(by, fy, y[None, :], k1, ORDER)  # [CHUNK, Y]
                wz = _weights(bz, fz, z[:, None], k2, ORDER)  # [Z, CHUNK]
                plane_weights = tl.reshape(wx[:, :, None] * wy[:, None, :], (CHUNK, X * Y))
                total += tl.dot(wz, plane_weights, input_precision=PRECISION, out_dtype=dtype)

    columns = tl.arange(0, X * Y)
    x, y = x0 + columns // Y, y0 + columns % Y
    line = (system * k0 + x) * k1 + y
    inside = ((x < k0) & (y < k1))[None, :] & (z < k2)[:, None]
    tl.store(mesh_ptr + line[None, :] * k2 + z[:, None], total, inside)


@triton.jit
def _gather_kernel(
    charges_ptr,
    positions_ptr,
    system_ptr,
    planes_ptr,
    base_ptr,
    fraction_ptr,
    order_ptr,
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
    """Interpolate potentials and their gradients. Grid: one program per ATOMS sorted atoms.

    Reads ``charges[N]``, ``positions[N, 3]``, ``system[N]``, `Places`, ``mesh[B, K0, K1, K2]`` and
    the potential ``self[1]`` of a unit charge at itself. Writes ``potential[N]``,
    ``gradient[N, 3]`` and ``sums[N, 10]``: energies, and gradients by the cell through fractional
    coordinates.
    """
    slot = tl.program_id(0).to(tl.int64) * ATOMS + tl.arange(0, ATOMS)
    mask = slot < n_atoms
    n = tl.cast(n_atoms, tl.int64)
    atom = tl.load(order_ptr + slot, mask, other=0).to(tl.int64)
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
    """Find atoms on a mesh, and sort them by bin, without waiting for the GPU.

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
    bins = torch.empty_like(base[0])
    with torch.cuda.device_of(positions):
        _planes_kernel[(n_systems,)](cell, planes, volume)
        if n_atoms:
            _locate_kernel[(triton.cdiv(n_atoms, _LOCATED),)](
                positions, system, planes, base, fraction, bins, n_atoms, *mesh, BLOCK=_LOCATED
            )
    bins, order = torch.sort(bins, stable=True)
    n_bins = n_systems * (mesh[0] // BIN) * (mesh[1] // BIN) * (mesh[2] // BIN)
    numbers = torch.arange(n_bins + 1, dtype=torch.int32, device=bins.device)
    starts = torch.searchsorted(bins, numbers, out_int32=True)
    return Places(planes, volume, base, fraction, order, starts)


def spread(charges: Tensor, places: Places, mesh: tuple[int, int, int], order: int) -> Tensor:
    """Return the charges on the mesh, [B, K0, K1, K2]."""
    out = charges.new_empty(len(places.planes), *mesh)
    x, y, z = _TILE
    tiles = triton.cdiv(mesh[0], x) * triton.cdiv(mesh[1], y) * triton.cdiv(mesh[2], z)
    with torch.cuda.device_of(charges):
        _spread_kernel[(tiles, len(out))](
            charges,
            *places[2:],
            out,
            len(charges),
            *mesh,
            ORDER=order,
            X=x,
            Y=y,
            Z=z,
            CHUNK=_CHUNK,
            PRECISION=exact_precision(charges),
        )
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
        _gather_kernel[(triton.cdiv(n_atoms, _GATHERED),)](
            charges,
            positions,
            system,
            places.planes,
            places.base,
            places.fraction,
            places.order,
            potentials,
            constants(self_potential, device=charges.device),
            *outputs,
            n_atoms,
            *potentials.shape[1:],
            ORDER=order,
            POINTS=_POINTS,
            ATOMS=_GATHERED,
        )
