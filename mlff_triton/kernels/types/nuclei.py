"""Nuclear repulsion (ZBL): its constants, and what it depends on apart from the distance."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

SCREENING = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4029), (0.02817, 0.2016))


class Nuclei(NamedTuple):
    """What the repulsion of nuclei depends on, apart from their distance.

    Attributes
    ----------
    charge : float64 [S]
        Nuclear charge of each element, elementary charges.
    inverse_length : float64 [S]
        Those of two elements add up to their inverse screening length, 1/Å.
    half_coulomb : float64 [1]
        Half the Coulomb constant, as each of two nuclei gets half of their repulsion, eV Å.
    cutoff : float64 [1]
        Å.
    """

    charge: Tensor
    inverse_length: Tensor
    half_coulomb: Tensor
    cutoff: Tensor
