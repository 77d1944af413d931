"""Sums over each system, computed and downloaded by a step as one tensor with named parts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

ENERGY, VIRIAL, STATUS = 0, slice(1, 10), 10
WIDTH = 11


@dataclass(frozen=True)
class Totals:
    """A typed view of the sums over the atoms of each system.

    Status bits are float64 like the sums, so that one copy downloads everything that the host has
    to check.

    Attributes
    ----------
    values : float64 [B, 11]
        Energy, virial (row by row) and highest status.
    """

    values: Tensor

    @property
    def energy(self) -> Tensor:
        """Energy in eV, float64 [B]."""
        return self.values[:, ENERGY]

    @property
    def virial(self) -> Tensor:
        """``dE/dstrain`` in eV, float64 [B, 3, 3]."""
        virial: Tensor = self.values[:, VIRIAL].unflatten(1, (3, 3))
        return virial

    @property
    def status(self) -> Tensor:
        """Highest status of any atom, see `mlff_triton.kernels.types.status`, float64 [B]."""
        return self.values[:, STATUS]
