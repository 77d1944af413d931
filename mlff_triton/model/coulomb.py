"""Coulomb energy of pairs of partial charges, damped at short range.

This is the energy of TorchMD-NET's output network ``ScalarPlusWeightedCoulomb``. Its damping comes
from AIMNet2 (https://doi.org/10.1039/D4SC08572H), and its reaction field is that of OpenMM:
I. G. Tironi et al., J. Chem. Phys. 102, 5451 (1995), https://doi.org/10.1063/1.469273.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.model.config import DAMPING_RADIUS

COULOMB = 27.211386024367243 * 0.5291772105638411
"""``e^2 / (4 pi eps0)`` in eV Å, from the same constants as in TorchMD-NET."""
DIELECTRIC = 78.3
"""Relative permittivity of the surroundings beyond the cutoff (water)."""


def coulomb_energy(distance: Tensor, cutoff: float | None) -> Tensor:
    """Compute the energy of two elementary charges.

    It is ``COULOMB (1 - s(d)) (1 / d)`` with ``s(d) = exp(1 - 1 / (1 - (d / 4.6 Å)^2))`` below
    4.6 Å and 0 above. With a cutoff ``c``, a reaction field of permittivity ``e`` replaces
    ``1 / d`` by ``1 / d + k d^2 - 1 / c - k c^2``, where ``k = (e - 1) / (2 e + 1) / c^3``.

    Parameters
    ----------
    distance : [P]
        Distances in Å, below the cutoff if there is one.
    cutoff : float, optional
        Cutoff in Å.

    Returns
    -------
    [P]
        Energies in eV.

    Examples
    --------
    >>> coulomb_energy(torch.tensor([5.0, 10.0]), None)
    tensor([2.8800, 1.4400])
    """
    damping = 1 - _screening(distance)
    potential = 1 / distance
    if cutoff is not None:
        k = (DIELECTRIC - 1) / (2 * DIELECTRIC + 1) / cutoff**3
        potential = potential + k * distance**2 - 1 / cutoff - k * cutoff**2
    return COULOMB * damping * potential


def ewald_energy(distance: Tensor, splitting: float) -> Tensor:
    """Compute the part of the energy of two elementary charges that a mesh leaves to pairs.

    It is ``COULOMB (erfc(a d) - s(d)) / d``, with the splitting ``a`` of an Ewald sum and the
    damping of `coulomb_energy`. The sum over waves adds ``COULOMB erf(a d) / d`` for all images.

    Parameters
    ----------
    distance : [P]
        Distances in Å; below the cutoff of the Ewald sum.
    splitting : float
        1/Å.

    Returns
    -------
    [P]
        Energies in eV.
    """
    return COULOMB * (torch.erfc(splitting * distance) - _screening(distance)) / distance


def _screening(distance: Tensor) -> Tensor:
    """Return ``s(d)``, the fraction by which the energy of a pair is damped."""
    inside = (distance / DAMPING_RADIUS).clamp(0, 1 - 1e-6)
    return torch.exp(1 - 1 / (1 - inside**2))
