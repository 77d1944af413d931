"""Reciprocal part of smooth particle-mesh Ewald, with its gradients.

    E = 1/2 sum_m G(m) |Q(m)|^2 - C alpha / sqrt(pi) sum_i q_i^2
    G(m) = C exp(-(pi k / alpha)^2) / (pi V k^2 |b(m)|^2)      k = cell^-1 m

Q is the Fourier transform of the charges on the mesh, b that of the splines, and G(0) is the
neutralizing background, ``-C pi / (alpha^2 V)``. After U. Essmann et al., J. Chem. Phys. 103, 8577
(1995), https://doi.org/10.1063/1.470117. The potential on the mesh is the inverse transform of
``G Q``; its value at an atom is the gradient by the charge, and its slope that by the position. So
one pass gives all gradients. Under a strain, a term of the energy changes by
``2 (1 / k^2 + pi^2 / alpha^2) k k^T - 1`` times its value.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.electrostatics.arguments import (
    check_atoms,
    constants,
    system_pointers,
    systems,
)
from mlff_triton.kernels.electrostatics.charge_mesh import Places, gather, locate, spread
from mlff_triton.kernels.electrostatics.derivatives import (
    COLUMNS,
    EnergyGradients,
    empty_gradients,
    energy_operator,
)
from mlff_triton.kernels.electrostatics.moduli import inverse_moduli
from mlff_triton.kernels.electrostatics.reference import mesh_ewald as reference
from mlff_triton.kernels.electrostatics.types import COULOMB, Electrostatics, PMEParameters
from mlff_triton.kernels.ops.segment_sum import segment_sum
from mlff_triton.kernels.types.charges import SumParts

_COULOMB = tl.constexpr(COULOMB)
_PI = tl.constexpr(math.pi)
_WAVES = 1024  # per program
_SUMS = tl.constexpr(7)
"""Sums over waves: the energy, and six components of its change under strain."""


@triton.jit
def _influence_kernel(
    spectrum_ptr,
    moduli_ptr,
    planes_ptr,
    volume_ptr,
    width_ptr,
    sums_ptr,
    n_waves,
    k0,
    k1,
    k2,
    BLOCK: tl.constexpr,
):
    """Multiply a spectrum by the influence function. Grid: (blocks of waves, systems).

    Reads ``moduli[K0 + K1 + K2]``, ``planes[B, 3, 3]``, ``volume[B]`` and ``width[1]``, which is
    the square of pi / alpha. Changes ``spectrum[B, K0, K1, K2 / 2 + 1, 2]`` in place. Writes
    ``sums[B, 7, blocks]``.
    """
    dtype: tl.constexpr = spectrum_ptr.dtype.element_ty
    system = tl.program_id(1).to(tl.int64)
    wave = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = wave < n_waves
    half = k2 // 2 + 1
    i, j, m = wave // (half * k1), wave // half % k1, wave % half
    product = tl.load(moduli_ptr + i, mask, other=0.0)
    product *= tl.load(moduli_ptr + k0 + j, mask, other=0.0)
    product *= tl.load(moduli_ptr + k0 + k1 + m, mask, other=0.0)
    u = tl.where(2 * i > k0, i - k0, i).to(dtype)
    v = tl.where(2 * j > k1, j - k1, j).to(dtype)
    w = m.to(dtype)
    normals = planes_ptr + 9 * system
    x = u * tl.load(normals).to(dtype) + v * tl.load(normals + 3).to(dtype)
    y = u * tl.load(normals + 1).to(dtype) + v * tl.load(normals + 4).to(dtype)
    z = u * tl.load(normals + 2).to(dtype) + v * tl.load(normals + 5).to(dtype)
    x += w * tl.load(normals + 6).to(dtype)
    y += w * tl.load(normals + 7).to(dtype)
    z += w * tl.load(normals + 8).to(dtype)

    is_zero = wave == 0
    squared = tl.where(is_zero | (mask == 0), 1.0, x * x + y * y + z * z).to(dtype)
    width = tl.load(width_ptr).to(dtype)
    factor = tl.exp(-width * squared) / squared
    factor = tl.where(is_zero, -width, factor)
    scale = _COULOMB / (_PI * tl.load(volume_ptr + system))
    factor = factor * product * scale.to(dtype)

    place = spectrum_ptr + (system * n_waves + wave) * 2
    real = tl.load(place, mask, other=0.0)
    imaginary = tl.load(place + 1, mask, other=0.0)
    tl.store(place, factor * real, mask)
    tl.store(place + 1, factor * imaginary, mask)

    twice = tl.where((m == 0) | (2 * m == k2), 0.5, 1.0)
    energy = (factor * (real * real + imaginary * imaginary)).to(tl.float64) * twice
    energy = tl.where(mask, energy, 0.0)
    strained = tl.where(is_zero, 0.0, 2 * energy * (1 / squared + width))
    n_blocks = tl.num_programs(0)
    sums_ptr += system * _SUMS * n_blocks + tl.program_id(0)
    tl.store(sums_ptr, tl.sum(energy))
    tl.store(sums_ptr + n_blocks, tl.sum(strained * x * x))
    tl.store(sums_ptr + 2 * n_blocks, tl.sum(strained * y * y))
    tl.store(sums_ptr + 3 * n_blocks, tl.sum(strained * z * z))
    tl.store(sums_ptr + 4 * n_blocks, tl.sum(strained * y * z))
    tl.store(sums_ptr + 5 * n_blocks, tl.sum(strained * x * z))
    tl.store(sums_ptr + 6 * n_blocks, tl.sum(strained * x * y))


@triton.jit
def _sum_of(sums_ptr, n_blocks, BLOCK: tl.constexpr):
    """Add up values, in a fixed order."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, n_blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        total += tl.load(sums_ptr + block, block < n_blocks, other=0.0)
    return tl.sum(total)


@triton.jit
def _finish_kernel(
    sums_ptr, totals_ptr, planes_ptr, energy_ptr, gradient_ptr, n_blocks, BLOCK: tl.constexpr
):
    """Compute energies and the gradients of cells. Grid: one program per system.

    Reads ``sums[B, 7, blocks]`` of waves, ``totals[B, 10]`` of atoms and ``planes[B, 3, 3]``.
    Writes ``energy[B]`` and ``gradient[B, 3, 3]``.
    """
    system = tl.program_id(0).to(tl.int64)
    sums_ptr += system * _SUMS * n_blocks
    energy = _sum_of(sums_ptr, n_blocks, BLOCK)
    xx = _sum_of(sums_ptr + n_blocks, n_blocks, BLOCK) - energy
    yy = _sum_of(sums_ptr + 2 * n_blocks, n_blocks, BLOCK) - energy
    zz = _sum_of(sums_ptr + 3 * n_blocks, n_blocks, BLOCK) - energy
    yz = _sum_of(sums_ptr + 4 * n_blocks, n_blocks, BLOCK)
    xz = _sum_of(sums_ptr + 5 * n_blocks, n_blocks, BLOCK)
    xy = _sum_of(sums_ptr + 6 * n_blocks, n_blocks, BLOCK)
    totals_ptr += 10 * system
    tl.store(energy_ptr + system, tl.load(totals_ptr))
    for d in tl.static_range(3):
        normal = planes_ptr + 9 * system + 3 * d
        x, y, z = tl.load(normal), tl.load(normal + 1), tl.load(normal + 2)
        of_atoms, out = totals_ptr + 1 + 3 * d, gradient_ptr + 9 * system + 3 * d
        tl.store(out, tl.load(of_atoms) + x * xx + y * xy + z * xz)
        tl.store(out + 1, tl.load(of_atoms + 1) + x * xy + y * yy + z * yz)
        tl.store(out + 2, tl.load(of_atoms + 2) + x * xz + y * yz + z * zz)


def _reference(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    splitting: float,
    mesh: list[int],
    order: int,
) -> Electrostatics:
    """Call the reference with the arguments of the operator."""
    return reference.mesh_ewald(charges, positions, cell, system, _of(splitting, mesh, order))


@energy_operator("mesh_ewald", _reference)
def _mesh_ewald(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    splitting: float,
    mesh: list[int],
    order: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return energies [B] and their gradients by charges, positions and cells."""
    return mesh_gradients(charges, positions, cell, system, _of(splitting, mesh, order))


def _of(splitting: float, mesh: list[int], order: int) -> PMEParameters:
    """Return parameters with any cutoff, as only pairs have one."""
    return PMEParameters(splitting, math.pi, (mesh[0], mesh[1], mesh[2]), order)


def mesh_gradients(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    parameters: PMEParameters,
    sum_parts: SumParts | None = None,
) -> EnergyGradients:
    """Compute `mesh_ewald` for atoms that need no check, and return all gradients.

    If the atoms are a part of each system, ``sum_parts`` sums values over all parts. Energies are
    those of its atoms. So are the gradients by the cell through fractional coordinates, but those
    through waves belong to the whole system.
    """
    out, size, order = empty_gradients(charges, positions, cell), parameters.mesh, parameters.order
    charges, positions, n_systems = charges.contiguous(), positions.contiguous(), len(cell)
    places = locate(positions, cell.double().contiguous(), system, size, charges.dtype)

    pointers = system_pointers(system, n_systems)
    charged = spread(charges, system, pointers, places, size, order, sum_parts)
    potentials, of_waves = convolved(charged, places, parameters.splitting, order)

    of_atoms = charges.new_empty(len(charges), COLUMNS, dtype=torch.float64)
    self_potential = 2 * COULOMB * parameters.splitting / math.sqrt(math.pi)
    results = out.charges, out.positions, of_atoms
    gather(potentials, charges, positions, system, places, self_potential, order, results)
    totals = segment_sum(of_atoms, pointers)
    with torch.cuda.device_of(charges):
        _finish_kernel[(n_systems,)](
            of_waves, totals, places.planes, out.energy, out.cell, of_waves.shape[2], BLOCK=_WAVES
        )
    return out


def convolved(
    charged: Tensor, places: Places, splitting: float, order: int
) -> tuple[Tensor, Tensor]:
    """Return the potentials of charges on meshes [B, K0, K1, K2], and sums over their waves.

    The sums [B, 7, blocks] are those of `_influence_kernel`.
    """
    n_systems, *mesh = charged.shape
    size = mesh[0], mesh[1], mesh[2]
    spectrum = torch.fft.rfftn(charged, dim=(1, 2, 3)).contiguous()
    n_waves = size[0] * size[1] * (size[2] // 2 + 1)
    n_blocks = triton.cdiv(n_waves, _WAVES)
    of_waves = charged.new_empty(n_systems, _SUMS.value, n_blocks, dtype=torch.float64)
    with torch.cuda.device_of(charged):
        _influence_kernel[(n_blocks, n_systems)](
            torch.view_as_real(spectrum),
            inverse_moduli(size, order, charged.dtype, charged.device),
            places.planes,
            places.volume,
            constants((math.pi / splitting) ** 2, device=charged.device),
            of_waves,
            n_waves,
            *size,
            BLOCK=_WAVES,
        )
    potentials = torch.fft.irfftn(spectrum, s=size, dim=(1, 2, 3), norm="forward")
    return potentials.contiguous(), of_waves


def mesh_ewald(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    batch: Tensor | None,
    parameters: PMEParameters,
) -> Electrostatics:
    """Compute the reciprocal part of smooth particle-mesh Ewald, reproducibly to the bit.

    The result includes the self-energy and, for charged systems, a neutralizing background.
    Gradients by charges, positions and cell are computed with it, and cost nothing more. They are
    differentiable, too, in plain PyTorch. NaN in the input makes the energy NaN.

    Parameters
    ----------
    charges : [N]
        Partial charges, elementary charges; float32 or float64, which the mesh has, too.
    positions : [N, 3]
        Å, float32 or float64; anywhere.
    cell : [B, 3, 3]
        Lattice vectors as rows, Å; float32 or float64.
    batch : int64 or int32 [N], optional
        System of each atom, ascending, which is not checked; None for one system.
    parameters : PMEParameters
        Splitting, mesh and order; `slab` is left to `pme_energy`.

    Returns
    -------
    Electrostatics

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or the meshes of all systems have more
        than 2^31 points.
    BackendError
        If the tensors are not on a GPU.
    """
    check_atoms(charges, positions, cell, batch)
    mesh, order = list(parameters.mesh), parameters.order
    given = charges, positions, cell, systems(charges, batch), parameters.splitting, mesh, order
    energy, potential, *_ = _mesh_ewald(*given)
    return Electrostatics(energy, potential)
