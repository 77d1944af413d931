"""Screened nuclear repulsion between bonded atoms, as in TorchMD-NET's ``RepulsionZBL``.

It has the form of ZBL with an exponent of 0.3, and vanishes with two derivatives at the sum of the
covalent radii. `mlff_triton.model.zbl` is another repulsion, that of TorchMD-NET's ZBL prior.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mlff_triton.kernels.types.nuclei import SCREENING
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.radial_basis import polynomial_cutoff

ANGSTROM_TO_BOHR = 1.8897261258369282
COULOMB = 14.399645  # eV Å
SCREENING_LENGTH = 0.4543 / ANGSTROM_TO_BOHR  # Å
EXPONENT = 0.3
# Å, from hydrogen on: B. Cordero et al., https://doi.org/10.1039/b801115j; 2.0 for elements
# beyond curium, as in ASE.
COVALENT_RADII = (
    *(0.31, 0.28, 1.28, 0.96, 0.84, 0.76, 0.71, 0.66, 0.57, 0.58, 1.66, 1.41, 1.21, 1.11, 1.07),
    *(1.05, 1.02, 1.06, 2.03, 1.76, 1.70, 1.60, 1.53, 1.39, 1.39, 1.32, 1.26, 1.24, 1.32, 1.22),
    *(1.22, 1.20, 1.19, 1.20, 1.20, 1.16, 2.20, 1.95, 1.90, 1.75, 1.64, 1.54, 1.47, 1.46, 1.42),
    *(1.39, 1.45, 1.44, 1.42, 1.39, 1.39, 1.38, 1.39, 1.40, 2.44, 2.15, 2.07, 2.04, 2.03, 2.01),
    *(1.99, 1.98, 1.98, 1.96, 1.94, 1.92, 1.92, 1.89, 1.90, 1.87, 1.87, 1.75, 1.70, 1.62, 1.51),
    *(1.44, 1.41, 1.36, 1.36, 1.32, 1.45, 1.46, 1.48, 1.40, 1.50, 1.50, 2.60, 2.21, 2.15, 2.06),
    *(2.00, 1.96, 1.90, 1.87, 1.80, 1.69, *[2.0] * 22),
)
UNKNOWN_RADIUS = 0.2  # of element 0, in TorchMD-NET's table


class Repulsion(nn.Module):
    """Repulsion energy of pairs of atoms.

    Attributes
    ----------
    charge : [S]
        Nuclear charge of each element; 1 for element 0.
    power : [S]
        Nuclear charge to the power of 0.3.
    radii : [S, S]
        Distance in Å at which the repulsion of each pair of elements ends.

    Notes
    -----
    Checkpoints hold these tables, because a model was trained with all their digits.
    """

    charge: Tensor
    power: Tensor
    radii: Tensor

    def __init__(self, config: TensorNet2Config) -> None:
        super().__init__()
        charge = torch.tensor([max(z, 1) for z in config.elements], dtype=torch.float64)
        table = (UNKNOWN_RADIUS, *COVALENT_RADII)
        radius = torch.tensor([table[z] for z in config.elements], dtype=torch.float64)
        tables = {
            "charge": charge,
            "power": charge**EXPONENT,
            "radii": radius[:, None] + radius,
        }
        for name, values in tables.items():
            self.register_buffer(name, values.to(torch.get_default_dtype()))

    def forward(self, distance: Tensor, species_i: Tensor, species_j: Tensor) -> Tensor:
        """Compute the energies of pairs of atoms.

        Parameters
        ----------
        distance : float64 [P]
            Distances in Å.
        species_i, species_j : int64 [P]
            Elements of both atoms.

        Returns
        -------
        float64 [P]
            Energies in eV.
        """
        charge, power, radii = self.charge.double(), self.power.double(), self.radii.double()
        x = distance * (power[species_i] + power[species_j]) / SCREENING_LENGTH
        screening = torch.stack([w * torch.exp(-rate * x) for w, rate in SCREENING]).sum(0)
        coulomb = COULOMB * charge[species_i] * charge[species_j] / distance
        inside = (distance / radii[species_i, species_j]).clamp(max=1.0)
        return coulomb * screening * polynomial_cutoff(inside)
