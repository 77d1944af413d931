"""Constants of the nuclear repulsion (ZBL)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

SCREENING = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4029), (0.02817, 0.2016))
"""Weights and rates of the exponentials in the screening function."""


class Nuclei(NamedTuple):
    """Parameters of the repulsion between nuclei.

    Attributes
    ----------
    charge : float64 [S]
        Nuclear charge of each element, elementary charges.
    inverse_length : float64 [S]
        Share of each element in the inverse screening length of a pair, which is the sum of both
        shares, 1/Å.
    half_coulomb : float64 [1]
        Half the Coulomb constant, eV Å: each nucleus of a pair gets half of their repulsion.
    cutoff : float64 [1]
        Distance beyond which the repulsion is zero, Å.
    ends : float64 [S, S], optional
        Distance at which a polynomial switches the repulsion of each pair of elements off, Å. By
        default, a cosine does so at the cutoff.
    """

    charge: Tensor
    inverse_length: Tensor
    half_coulomb: Tensor
    cutoff: Tensor
    ends: Tensor | None = None
