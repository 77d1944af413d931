"""Coulomb energy of the charges of a machine-learning part with those of a force field.

    E = C sum_{i,j} q_i q_j erf(r_ij / d) / r_ij

over atoms i of the part and charges j of the force field, with a damping length d. The charges of
the force field thus become Gaussian functions, as in D. Das et al., J. Chem. Phys. 117, 10534
(2002), https://doi.org/10.1063/1.1520134. A reaction field, which replaces 1 / r, is that of
OpenMM: I. G. Tironi et al., J. Chem. Phys. 102, 5451 (1995), https://doi.org/10.1063/1.469273.

With particle-mesh Ewald, the sum includes all periodic images, including those of the part itself,
and a uniform background that neutralizes the total charge. The sum over the mesh is the energy of
the part's charges in the potential of the force field's charges and half of their own. Nothing is
differentiated: potentials are computed with their gradients. Sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.engine.batch import IntArray
from mlff_triton.kernels.electrostatics.protocol import FieldOperators
from mlff_triton.kernels.electrostatics.reference.cross_pairs import (
    CHUNK,
    complement,
    nearest_images,
)
from mlff_triton.kernels.electrostatics.types import (
    COULOMB,
    MeshPlaces,
    PairTerms,
    PMEParameters,
)
from mlff_triton.neighbors.box import FloatArray


@dataclass(frozen=True)
class Surroundings:
    """Charges of a force field, and how they act on the charges of the machine-learning part.

    Attributes
    ----------
    sites : int64 [S]
        Indices in the System of the charged particles outside the part.
    charges : float64 [S]
        Their charges in elementary charges.
    method : {"all-pairs", "reaction-field", "pme"}
        Sum over all pairs, over those within the cutoff, or over all periodic images.
    periodic : bool
        True if pairs are formed with nearest images.
    cutoff : float
        Å; infinity for all pairs.
    dielectric : float
        Relative permittivity beyond the cutoff, for a reaction field.
    damping : float
        Damping length in Å, or 0 for point charges. The damping must have vanished at the cutoff.
    pme_error : float
        Requested relative error of forces, for particle-mesh Ewald.
    """

    sites: IntArray
    charges: FloatArray
    method: str
    periodic: bool
    cutoff: float
    dielectric: float
    damping: float
    pme_error: float


class Geometry(NamedTuple):
    """Positions at which charges act.

    Attributes
    ----------
    own : float64 [M, 3]
        Atoms of the part, with its molecules whole, Å.
    sites : float64 [S, 3]
        Charges of the force field; anywhere in a periodic box, Å.
    box : float64 [3, 3] or None
        Reduced box vectors of OpenMM as rows, Å.
    """

    own: Tensor
    sites: Tensor
    box: Tensor | None


class CrossSums(NamedTuple):
    """Energies of the part's charges, and their gradients.

    Attributes
    ----------
    energies, potential : float64 [M]
        Same as for `mlff_triton.model.prediction.FieldSums`.
    of_own : float64 [M, 3]
        Derivatives of the energy by positions of the part, at fixed charges, eV/Å.
    charges : float64 [M]
        Charges of the part.
    waves : float64 [K0, K1, K2] or None
        Their potential on the mesh.
    """

    energies: Tensor
    potential: Tensor
    of_own: Tensor
    charges: Tensor
    waves: Tensor | None


class Partners(NamedTuple):
    """Sites with which the part may have pairs within the cutoff.

    Attributes
    ----------
    rows : int64 [K] or None
        Their indices; None for all sites.
    sites : float64 [K, 3]
        Positions, Å.
    box : float64 [3, 3] or None
        Box in which vectors connect nearest images; None if positions are used as given.
    """

    rows: Tensor | None
    sites: Tensor
    box: Tensor | None


class Field(NamedTuple):
    """Results that do not depend on the charges of the part.

    Attributes
    ----------
    geometry : Geometry
        Positions.
    near : Partners
        Sites of sums over pairs.
    potential, gradient : float64 [M], [M, 3]
        Potential of the force field's charges at the part, V, and its gradient, V/Å.
    images : list of tuples, or None
        Everything that `CrossCoulomb.images` yields, if it is small.
    places : tuple of MeshPlaces, or None
        Part and sites on the mesh.
    """

    geometry: Geometry
    near: Partners
    potential: Tensor
    gradient: Tensor
    images: list[tuple[Tensor, Tensor]] | None
    places: tuple[MeshPlaces, MeshPlaces] | None


class CrossCoulomb:
    """Coulomb sums of a part's charges with those of a force field, without waiting for a GPU.

    Parameters
    ----------
    surroundings : Surroundings
        Charges of the force field.
    operators : FieldOperators
        Kernels, loops for CPUs or plain PyTorch.
    device : torch.device
        Device that computes.

    Attributes
    ----------
    mesh : PMEParameters or None
        Splitting and mesh for the box, for particle-mesh Ewald.
    """

    def __init__(
        self, surroundings: Surroundings, operators: FieldOperators, device: torch.device
    ) -> None:
        self._surroundings, self._ops = surroundings, operators
        self._charges = torch.from_numpy(surroundings.charges).to(device)
        self.mesh: PMEParameters | None = None

    def at(self, geometry: Geometry) -> Field:
        """Compute the field at positions."""
        near, ops, charges = self._near(geometry), self._ops, self._charges
        if near.rows is not None:
            charges = charges.index_select(0, near.rows)
        given = geometry.own, near.sites, charges, near.box, self._terms
        potential, gradient = ops.potentials_at(*given)
        if self.mesh is None:
            return Field(geometry, near, potential, gradient, None, None)
        assert geometry.box is not None
        cell = geometry.box[None]
        own, others = (ops.mesh_places(p, cell, self.mesh) for p in (geometry.own, geometry.sites))
        waves = ops.mesh_potential(self._charges, others, cell, self.mesh)
        values, slopes = ops.mesh_values(waves, own, self.mesh)
        found = potential + values, gradient + slopes
        are_few = len(geometry.own) ** 2 <= CHUNK
        images = list(self.images(geometry, self.mesh)) if are_few else None
        return Field(geometry, near, *found, images, (own, others))

    def sums(self, field: Field, charges: Tensor) -> CrossSums:
        """Return the energies of the part's charges [M] in a field, and gradients at the part."""
        charges, ops, geometry = charges.double(), self._ops, field.geometry
        own_potential, gradient, waves = torch.zeros_like(charges), field.gradient, None
        if self.mesh is not None:
            assert geometry.box is not None
            assert field.places is not None
            own, _ = field.places
            waves = ops.mesh_potential(charges, own, geometry.box[None], self.mesh)
            values, slopes = ops.mesh_values(waves, own, self.mesh)
            images = field.images or self.images(geometry, self.mesh)
            pairs = [(v @ charges, (s * charges[:, None]).sum(1)) for v, s in images]
            of_images, slopes_of_images = (torch.cat(each) for each in zip(*pairs, strict=True))
            own_potential = values + of_images - _self_potential(self.mesh) * charges
            gradient = gradient + slopes + slopes_of_images
        return CrossSums(
            charges * (field.potential + 0.5 * own_potential),
            field.potential + own_potential,
            charges[:, None] * gradient,
            charges,
            waves,
        )

    def at_sites(self, field: Field, sums: CrossSums) -> Tensor:
        """Return derivatives [S, 3] of the energy by positions of the force field's charges, eV/Å.

        The network does not depend on them.
        """
        geometry, near, ops = field.geometry, field.near, self._ops
        given = geometry.own, sums.charges, near.sites, near.box, self._terms
        gradient = ops.gradients_of(*given)
        if near.rows is not None:
            every = torch.zeros_like(geometry.sites)
            gradient = every.index_copy_(0, near.rows, gradient)
        if self.mesh is not None:
            assert field.places is not None
            assert sums.waves is not None
            gradient = gradient + ops.mesh_values(sums.waves, field.places[1], self.mesh)[1]
        return self._charges[:, None] * gradient

    @property
    def _terms(self) -> PairTerms:
        """Energy of a pair of unit charges."""
        s = self._surroundings
        curvature = shift = 0.0
        if s.method == "reaction-field":
            curvature = (s.dielectric - 1) / (2 * s.dielectric + 1) / s.cutoff**3
            shift = 3 * s.dielectric / (2 * s.dielectric + 1) / s.cutoff
        splitting = 0.0 if self.mesh is None else self.mesh.splitting
        return PairTerms(s.cutoff, splitting, curvature, shift, s.damping)

    def _box(self, geometry: Geometry) -> Tensor | None:
        return geometry.box if self._surroundings.periodic else None

    def _near(self, geometry: Geometry) -> Partners:
        """Return the sites within the cutoff of a sphere around the part, on a CPU.

        They are the images nearest to its center, and so to its atoms. All sites are taken on a
        GPU, which would wait for their number, and in a box in which such images are ambiguous.
        """
        cutoff, box = self._surroundings.cutoff, self._box(geometry)
        every = Partners(None, geometry.sites, box)
        if geometry.own.is_cuda or math.isinf(cutoff):
            return every
        center = (geometry.own.amin(0) + geometry.own.amax(0)) / 2
        reach = float(torch.linalg.vector_norm(geometry.own - center, dim=1).max()) + cutoff
        if box is not None and not reach < float(box.diagonal().min()) / 2:
            return every
        vectors = nearest_images(geometry.sites - center, box)
        rows = torch.nonzero((vectors**2).sum(1) < reach**2).flatten()
        return Partners(rows, center + vectors.index_select(0, rows), None)

    def images(self, geometry: Geometry, mesh: PMEParameters) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute the interaction of the part's pairs within the cutoff, without that in molecules.

        The model contains the energy of the molecules, and the mesh contains it again.

        Yields
        ------
        float64 [K, M]
            Energies of unit charges at the next K atoms with those at all atoms, V.
        float64 [K, M, 3]
            Their derivatives by the positions of the K atoms, V/Å.
        """
        atoms = torch.arange(len(geometry.own), device=geometry.own.device)
        for some in atoms.split(max(1, CHUNK // len(atoms))):
            apart = geometry.own.index_select(0, some)[:, None] - geometry.own
            other = some[:, None] != atoms
            nearest = nearest_images(apart, geometry.box)
            counts = other & ((nearest**2).sum(2) < self._surroundings.cutoff**2)
            distance = torch.where(counts, (nearest**2).sum(2), 1.0).sqrt()
            value, slope = complement(distance, mesh.splitting)
            bare = 1 / torch.where(other, (apart**2).sum(2), torch.inf).sqrt()
            factors = torch.where(counts, value, 0.0) - bare
            vectors = torch.where(counts, slope, 0.0)[:, :, None] * nearest
            yield COULOMB * factors, COULOMB * (vectors + (bare**3)[:, :, None] * apart)


def _self_potential(mesh: PMEParameters) -> float:
    """Return the potential of a unit charge at itself on a mesh, V."""
    return 2 * COULOMB * mesh.splitting / math.sqrt(math.pi)
