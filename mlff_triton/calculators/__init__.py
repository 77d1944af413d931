"""TensorNet for ASE, OpenMM, LAMMPS and TorchSim, each loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlff_triton._common.lazy import attributes

_HOME_OF = {
    "TensorNetCalculator": "mlff_triton.calculators.ase_calculator",
    "TorchSimModel": "mlff_triton.calculators.torch_sim_model",
    "create_openmm_bonds": "mlff_triton.calculators.openmm.molecules",
    "create_openmm_force": "mlff_triton.calculators.openmm.force",
    "explain_openmm_route": "mlff_triton.calculators.openmm.force",
}

__all__ = [
    "TensorNetCalculator",
    "TorchSimModel",
    "create_openmm_bonds",
    "create_openmm_force",
    "explain_openmm_route",
]

if TYPE_CHECKING:
    from mlff_triton.calculators.ase_calculator import TensorNetCalculator
    from mlff_triton.calculators.openmm.force import create_openmm_force, explain_openmm_route
    from mlff_triton.calculators.openmm.molecules import create_openmm_bonds
    from mlff_triton.calculators.torch_sim_model import TorchSimModel

__getattr__ = attributes(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return __all__
