"""Coulomb energy of the charges of a machine-learning part with those of a force field.

    E = C sum_{i,j} q_i q_j erf(r_ij / d) / r_ij

over atoms i of the part and charges j of the force field, with a damping length d. The charges of
the force field thus become Gaussian functions, as in D. Das et al., J. Chem. Phys. 117, 10534
(2002), https://doi.org/10.1063/1.1520134. Instead of 1 / r, a reaction field is that of OpenMM:
I. G. Tironi et al., J. Chem. Phys. 102, 5451 (1995), https://doi.org/10.1063/1.469273.

By particle-mesh Ewald, the sum includes all periodic images, those of the part itself among them,
and a uniform background that neutralizes the total charge. Its mesh part is the difference of the
energy of all charges and that of the force field's. Sums are in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.engine.batch import IntArray
from mlff_triton.kernels.electrostatics.reference import charge_channels
from mlff_triton.kernels.electrostatics.types import COULOMB, ChannelSums, PMEParameters
from mlff_triton.model.prediction import FieldSums
from mlff_triton.neighbors.box import FloatArray

CHUNK = 1 << 21
"""Pairs of atoms whose distances are in memory at the same time."""


@dataclass(frozen=True)
class Surroundings:
    """Charges of a force field, and how they act on those of the machine-learning part.

    Attributes
    ----------
    sites : int64 [S]
        Indices in the System of the particles outside of the part that are charged.
    charges : float64 [S]
        Their charges in elementary charges.
    method : {"all-pairs", "reaction-field", "pme"}
        Sum over all pairs, over those within the cutoff, or over all periodic images.
    periodic : bool
        True if pairs are those of nearest images.
    cutoff : float
        Å; infinity for all pairs.
    dielectric : float
        Relative permittivity beyond the cutoff, for a reaction field.
    damping : float
        Damping length in Å, or 0 for point charges. At the cutoff, nothing may be left of it.
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
    site_charges : float64 [S]
        Elementary charges.
    box : float64 [3, 3] or None
        Reduced box vectors of OpenMM as rows, Å.
    """

    own: Tensor
    sites: Tensor
    site_charges: Tensor
    box: Tensor | None


class CrossCoulomb:
    """The field of a force field's charges, at fixed positions.

    A call with the charges of the part returns their energies and potentials. It also adds up the
    gradients, whose mean over all calls is that of an ensemble.

    Parameters
    ----------
    surroundings : Surroundings
        Charges of the force field.
    geometry : Geometry
        Positions.
    mesh : PMEParameters, optional
        Splitting and mesh for the box, for particle-mesh Ewald.

    Attributes
    ----------
    of_own : float64 [M, 3]
        Derivatives of the energy by positions of the part, at fixed charges, eV/Å: a sum over all
        calls.
    of_sites : float64 [S, 3]
        Derivatives by positions of the force field's charges.
    n_calls : int
        Number of calls.
    """

    def __init__(
        self, surroundings: Surroundings, geometry: Geometry, mesh: PMEParameters | None = None
    ) -> None:
        self._surroundings, self._geometry, self._mesh = surroundings, geometry, mesh
        self.of_own = torch.zeros_like(geometry.own)
        self.of_sites = torch.zeros_like(geometry.sites)
        self.n_calls = 0

    def __call__(self, charges: Tensor) -> FieldSums:
        """Return the energies and potentials of the part's charges [M]."""
        self.n_calls += 1
        charges = charges.double()
        potential = self._with_sites(charges)
        energies = charges * potential
        if self._mesh is not None:
            for found in (self._with_images(charges), self._with_waves(charges, self._mesh)):
                energies, potential = energies + found.energies, potential + found.potential
        return FieldSums(energies, potential)

    def _with_sites(self, charges: Tensor) -> Tensor:
        """Add the gradients of pairs within the cutoff, and return the potential of sites [M]."""
        g, cutoff = self._geometry, self._surroundings.cutoff
        potential = torch.zeros_like(charges)
        for some in torch.arange(len(charges), device=charges.device).split(
            max(1, CHUNK // max(len(g.sites), 1))
        ):
            vectors = self._vectors(g.own[some, None] - g.sites)
            squared = (vectors**2).sum(2)
            near = torch.nonzero((squared < cutoff**2).any(0)).flatten()
            vectors, squared = vectors[:, near], squared[:, near]
            values, slopes = self._pair_energy(squared.sqrt())
            inside = squared < cutoff**2
            site_charges = COULOMB * g.site_charges[near]
            potential[some] = torch.where(inside, values, 0.0) @ site_charges
            factors = torch.where(inside, slopes, 0.0) * charges[some, None] * site_charges
            gradients = factors[:, :, None] * vectors
            self.of_own[some] += gradients.sum(1)
            self.of_sites[near] -= gradients.sum(0)
        return potential

    def _pair_energy(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the energy of pairs of unit charges without Coulomb's constant, and its slope.

        The slope is divided by the distance.
        """
        s = self._surroundings
        if self._mesh is not None:
            value, slope = _complement(distance, self._mesh.splitting)
        else:
            value, slope = 1 / distance, -1 / distance**3
        if s.method == "reaction-field":
            k = (s.dielectric - 1) / (2 * s.dielectric + 1) / s.cutoff**3
            c = 3 * s.dielectric / (2 * s.dielectric + 1) / s.cutoff
            value, slope = value + k * distance**2 - c, slope + 2 * k
        if s.damping:
            lost, slope_of_lost = _complement(distance, 1 / s.damping)
            value, slope = value - lost, slope - slope_of_lost
        return value, slope

    def _with_images(self, charges: Tensor) -> FieldSums:
        """Add the part's pairs within the cutoff, less those of the molecules themselves.

        Their own energy is that of the model, and the mesh contains it again.
        """
        g, cutoff = self._geometry, self._surroundings.cutoff
        assert self._mesh is not None
        potential = torch.zeros_like(charges)
        atoms = torch.arange(len(charges), device=charges.device)
        for some in atoms.split(max(1, CHUNK // len(charges))):
            apart = g.own[some, None] - g.own
            other = some[:, None] != atoms
            nearest = self._vectors(apart)
            found = torch.zeros_like(apart)
            total = torch.zeros_like(apart[:, :, 0])
            for vectors, reach, is_own in ((nearest, cutoff, False), (apart, math.inf, True)):
                squared = (vectors**2).sum(2)
                counts = other & (squared < reach**2)
                distance = torch.where(counts, squared, 1.0).sqrt()
                value, slope = -1 / distance, 1 / distance**3
                if not is_own:
                    value, slope = _complement(distance, self._mesh.splitting)
                total += torch.where(counts, value, 0.0)
                found += torch.where(counts, slope, 0.0)[:, :, None] * vectors
            potential[some] = COULOMB * (total @ charges)
            products = COULOMB * charges[some, None] * charges
            self.of_own[some] += (products[:, :, None] * found).sum(1)
        return FieldSums(0.5 * charges * potential, potential)

    def _with_waves(self, charges: Tensor, mesh: PMEParameters) -> FieldSums:
        """Add what the mesh of all charges has beyond that of the force field's."""
        g, n_own = self._geometry, len(charges)
        assert g.box is not None
        outside = torch.cat([torch.zeros_like(charges), g.site_charges])
        every = torch.cat([charges, g.site_charges])
        positions = torch.cat([g.own, g.sites])
        found = _channel_sums(
            torch.stack([every, outside], dim=1),
            torch.tensor([1.0, -1.0], dtype=torch.float64, device=charges.device),
            positions,
            g.box[None],
            torch.zeros(len(every), dtype=torch.int32, device=charges.device),
            mesh,
        )
        self.of_own += found.gradient[:n_own]
        self.of_sites += found.gradient[n_own:]
        of_all, of_sites = found.potential[:n_own].unbind(1)
        return FieldSums(0.5 * charges * (of_all + of_sites), of_all)

    def _vectors(self, vectors: Tensor) -> Tensor:
        """Return vectors between nearest images, which are right up to half the box."""
        if not self._surroundings.periodic:
            return vectors
        box = self._geometry.box
        assert box is not None
        for k in (2, 1, 0):  # of reduced box vectors, the later ones lean on the earlier
            vectors = vectors - torch.round(vectors[..., k : k + 1] / box[k, k]) * box[k]
        return vectors


def _channel_sums(charges: Tensor, *others: Any) -> ChannelSums:
    """Sum over waves by kernels on a GPU, and by plain PyTorch on a CPU."""
    if not charges.is_cuda:
        return charge_channels.channel_sums(charges, *others)
    from mlff_triton.kernels.electrostatics.charge_channels import channel_sums

    return channel_sums(charges, *others)


def _complement(distance: Tensor, splitting: float) -> tuple[Tensor, Tensor]:
    """Return ``erfc(a r) / r``, and its derivative divided by ``r``."""
    value = torch.erfc(splitting * distance) / distance
    gaussian = 2 * splitting / math.sqrt(math.pi) * torch.exp(-((splitting * distance) ** 2))
    return value, -(value + gaussian) / distance**2
