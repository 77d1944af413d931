"""Front ends: TensorNet for ASE and for OpenMM, each loaded when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME_OF = {
    "TensorNetCalculator": "mlff_triton.calculators.ase_calculator",
    "create_openmm_force": "mlff_triton.calculators.openmm_force",
    "explain_openmm_route": "mlff_triton.calculators.openmm_force",
}

__all__ = ["TensorNetCalculator", "create_openmm_force", "explain_openmm_route"]

if TYPE_CHECKING:
    from mlff_triton.calculators.ase_calculator import TensorNetCalculator
    from mlff_triton.calculators.openmm_force import create_openmm_force, explain_openmm_route


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mlff_triton.calculators' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
