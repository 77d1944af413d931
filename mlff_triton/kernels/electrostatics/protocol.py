"""Protocol of operators of the field of charges, which kernels, loops and references satisfy."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mlff_triton.kernels.electrostatics.types import MeshPlaces, PairTerms, PMEParameters


class FieldOperators(Protocol):
    """Sums over pairs of two sets of charges, and meshes of one set at another.

    Shapes are documented with the operators themselves, in `reference.cross_pairs` and
    `reference.mesh_field`.
    """

    def potentials_at(
        self,
        points: Tensor,
        sites: Tensor,
        charges: Tensor,
        box: Tensor | None,
        terms: PairTerms,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Compute the potential of charges at points, and its gradient."""

    def gradients_of(
        self,
        points: Tensor,
        charges: Tensor,
        sites: Tensor,
        box: Tensor | None,
        terms: PairTerms,
        /,
    ) -> Tensor:
        """Compute the gradient of the potential that charges at points have at sites."""

    def mesh_places(
        self, positions: Tensor, cell: Tensor, parameters: PMEParameters, /
    ) -> MeshPlaces:
        """Find positions on a mesh."""

    def mesh_potential(
        self, charges: Tensor, places: MeshPlaces, cell: Tensor, parameters: PMEParameters, /
    ) -> Tensor:
        """Compute the potential of charges, with their own, on a mesh."""

    def mesh_values(
        self, mesh: Tensor, places: MeshPlaces, parameters: PMEParameters, /
    ) -> tuple[Tensor, Tensor]:
        """Interpolate a potential on a mesh, and its gradient."""
