"""TensorNet in LAMMPS: large systems on several GPUs."""

from mlff_triton.calculators.lammps.coupling import Coupling
from mlff_triton.calculators.lammps.start import couple

__all__ = ["Coupling", "couple"]
