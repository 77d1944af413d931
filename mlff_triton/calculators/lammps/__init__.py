"""TensorNet in LAMMPS: large systems on several GPUs."""

from mlff_triton.calculators.lammps.coupling import Coupling, couple

__all__ = ["Coupling", "couple"]
