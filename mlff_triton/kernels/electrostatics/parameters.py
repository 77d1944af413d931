"""Splitting parameter and mesh of particle-mesh Ewald for a requested error.

Errors are root mean squares over all atoms, relative to the root mean square of the forces. Those
of the sum in real space are estimated as by J. Kolafa and J. W. Perram, Mol. Simul. 9, 351 (1992),
https://doi.org/10.1080/08927029208049126, equation 18:

    2 q^2 C sqrt(rho / cutoff) exp(-(alpha cutoff)^2)

The error of the mesh is ``a sqrt(alpha) (alpha h)^n q^2 C sqrt(rho)`` at the spacing h. Essmann et
al. derive the power n = p of the splines' order. As the derivative of a spline is less smooth, the
errors measured in random boxes fall more slowly. Both errors are relative to the force
``F C q^2 rho^(2/3)`` in boxes with ``rho`` = 0.1 atoms/Å^3. The density hardly matters, as errors
depend on its sixth root.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.types import MULTIPLE, ORDERS, SMALLEST_MESH, PMEParameters

DENSITY = 0.1  # atoms per Å^3, as in water
FORCE = 2.5
"""Scale of forces, in units of C q^2 density^(2/3). It was 4 in random boxes."""
MESH_ERRORS = {4: (0.07, 3.2), 5: (0.045, 4.4), 6: (0.03, 5.5)}
"""Relative error at a splitting of 1/Å and a spacing of 1 Å, and the power, by the splines' order.

Boxes of 100 and 400 unit charges with 0.1 atoms/Å^3, splittings of 0.3 to 0.6/Å, and products of
splitting and spacing from 0.12 to 0.6 had errors of 30 to 85 % of these.
"""
LARGEST_ERROR, SMALLEST_ERROR = 1e-2, 1e-9
PRIMES = (2, 3, 5, 7)  # for which Fourier transforms are fast


def pme_parameters(
    cell: Tensor,
    cutoff: float,
    error: float = 1e-5,
    *,
    order: int = 5,
    slab: int | None = None,
) -> PMEParameters:
    """Choose the splitting parameter and the mesh of particle-mesh Ewald.

    It waits for a GPU if the cells are there. All systems of a batch share the mesh, so they should
    have similar sizes.

    Parameters
    ----------
    cell : [B, 3, 3]
        Lattice vectors as rows, Å.
    cutoff : float
        Cutoff of the sum in real space, Å. It may exceed half the cell, as long as the neighbor
        list contains all images.
    error : float
        Largest error of forces, from 1e-9 to 1e-2: its root mean square over atoms, relative to the
        root mean square of the forces. Half its square is left to each of both sums. Below 1e-6,
        charges must be float64.
    order : {4, 5, 6}
        Order of the B-splines. A mesh for a higher order is coarser, with more points per atom.
    slab : {0, 1, 2}, optional
        Lattice vector along which the systems are not periodic: see `PMEParameters`.

    Returns
    -------
    PMEParameters

    Raises
    ------
    InputError
        If a cell has no volume or is not finite, or a value is out of range.

    Examples
    --------
    >>> pme_parameters(30 * torch.eye(3)[None], cutoff=9.0, error=1e-4).mesh
    (36, 36, 36)
    """
    if cell.dim() != 3 or cell.shape[1:] != (3, 3) or not len(cell):
        raise InputError(f"cell has the shape {list(cell.shape)} instead of [B, 3, 3]")
    if not 0 < cutoff < math.inf:
        raise InputError(f"the cutoff must be positive and finite, not {cutoff}")
    if not SMALLEST_ERROR <= error <= LARGEST_ERROR:
        raise InputError(f"error={error} is out of range: use 1e-9 to 1e-2")
    if order not in ORDERS:
        raise InputError(f"order={order} is not supported: use 4, 5 or 6")
    check_cells(cell)
    share = error / math.sqrt(2)
    splitting = _splitting(cutoff, share)
    factor, power = MESH_ERRORS[order]
    spacing = (share / (factor * math.sqrt(splitting))) ** (1 / power) / splitting
    lengths = torch.linalg.vector_norm(cell.double(), dim=2).amax(0).tolist()
    x, y, z = (mesh_size(length / spacing) for length in lengths)
    return PMEParameters(splitting, cutoff, (x, y, z), order, slab)


def check_cells(cell: Tensor) -> None:
    """Raise `InputError` unless cells [B, 3, 3] are finite and have a volume; wait for a GPU."""
    if not bool(torch.isfinite(cell).all()):
        raise InputError("the cell holds NaN or infinity")
    lengths = torch.linalg.vector_norm(cell.double(), dim=2)
    flat = torch.linalg.det(cell.double()).abs() <= 1e-6 * lengths.prod(1)
    if bool(flat.any()):
        system = int(flat.nonzero()[0, 0])
        raise InputError(
            f"the cell of system {system} has no volume: particle-mesh Ewald needs three lattice "
            "vectors; sum over all pairs of a molecule, or give a slab a third vector and slab="
        )


def mesh_size(least: float) -> int:
    """Return the smallest number of mesh points that is at least as large and fast to transform."""
    n = max(SMALLEST_MESH, MULTIPLE * math.ceil(least / MULTIPLE))
    while not _is_smooth(n):
        n += MULTIPLE
    return n


def _is_smooth(n: int) -> bool:
    for prime in PRIMES:
        while n % prime == 0:
            n //= prime
    return n == 1


def _splitting(cutoff: float, error: float) -> float:
    """Return the splitting in 1/Å with a given error of the sum in real space."""
    largest = 2 * DENSITY ** (-1 / 6) / (FORCE * math.sqrt(cutoff))
    return math.sqrt(max(math.log(largest / error), 1.0)) / cutoff
