"""Parameters and results of Ewald sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.units import BOHR, HARTREE

COULOMB = HARTREE * BOHR
"""``e^2 / (4 pi eps0)`` in eV Å."""
ORDERS = (4, 5, 6)
"""Orders of B-splines for which there are kernels."""
MULTIPLE = 4
"""Numbers of mesh points are multiples of it: `parameters.mesh_size` has fewer sizes to choose."""
SMALLEST_MESH = 2 * MULTIPLE


@dataclass(frozen=True)
class PMEParameters:
    """Parameters of particle-mesh Ewald, as `parameters.pme_parameters` chooses them.

    Attributes
    ----------
    splitting : float
        Parameter ``alpha`` in 1/Å, which divides the sum between real and reciprocal space.
    cutoff : float
        Cutoff of the sum in real space, Å.
    mesh : tuple of int
        Number of mesh points along each lattice vector: multiples of 4, at least 8.
    order : {4, 5, 6}
        Order of the B-splines, which have as many mesh points in each direction.
    slab : {0, 1, 2}, optional
        Lattice vector along which the system is not periodic. The cell contains an empty layer in
        this direction, and the energy gets the correction of Yeh and Berkowitz.

    Raises
    ------
    InputError
        If a value is not supported.
    """

    splitting: float
    cutoff: float
    mesh: tuple[int, int, int]
    order: int = 5
    slab: int | None = None

    def __post_init__(self) -> None:
        for name in ("splitting", "cutoff"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be positive and finite, not {getattr(self, name)}")
        if self.order not in ORDERS:
            raise InputError(f"order={self.order} is not supported: use 4, 5 or 6")
        if len(self.mesh) != 3 or any(n < SMALLEST_MESH or n % MULTIPLE for n in self.mesh):
            raise InputError(
                f"the mesh has {list(self.mesh)} points: use three multiples of {MULTIPLE}, at "
                f"least {SMALLEST_MESH}"
            )
        if self.slab not in (None, 0, 1, 2):
            raise InputError(f"slab={self.slab} is unknown: use 0, 1, 2 or None")


class Electrostatics(NamedTuple):
    """Electrostatic energies and potentials.

    Attributes
    ----------
    energy : float64 [B]
        Energy of each system in eV.
    potential : [N]
        Electrostatic potential at each atom in V, without its own charge: the derivative of the
        energy with respect to its charge. Half its product with the charge is the atom's energy.
    """

    energy: Tensor
    potential: Tensor


class ChannelSums(NamedTuple):
    """Potentials of several kinds of charges, and the gradients of their weighted energy.

    Attributes
    ----------
    potential : [N, C]
        Potential of each kind of charge at each atom, without its own charge, V.
    gradient : float64 [N, 3]
        Gradient of the energy by positions, eV/Å.
    virial : float64 [B, 3, 3]
        Derivative of the energy by strain, eV.
    """

    potential: Tensor
    gradient: Tensor
    virial: Tensor

    def plus(self, other: ChannelSums) -> ChannelSums:
        """Return the sums of both energies."""
        return ChannelSums(*(a + b for a, b in zip(self, other, strict=True)))


class PairTerms(NamedTuple):
    """Coulomb energy of a pair of unit charges, without Coulomb's constant.

        E(r) = erfc(splitting r) / r + curvature r^2 - shift - erfc(r / damping) / r    r < cutoff

    Attributes
    ----------
    cutoff : float
        Å; infinity for all pairs.
    splitting : float
        Splitting parameter of an Ewald sum in 1/Å, or 0.
    curvature, shift : float
        Terms of a reaction field, 1/Å^3 and 1/Å.
    damping : float
        Damping length in Å, or 0 for point charges.
    """

    cutoff: float
    splitting: float = 0.0
    curvature: float = 0.0
    shift: float = 0.0
    damping: float = 0.0


class MeshPlaces(NamedTuple):
    """Positions on a mesh, in the layout of the operator that made them.

    Attributes
    ----------
    base : [N, 3] or [3, N]
        Mesh point below each position.
    fraction : float64 [N, 3] or [3, N]
        Distance from it, from 0 to 1.
    planes : float64 [1, 3, 3]
        Gradients of the fractional coordinates, 1/Å.
    others : tuple of tensor
        Other tensors that kernels read.
    """

    base: Tensor
    fraction: Tensor
    planes: Tensor
    others: tuple[Tensor, ...] = ()
