"""mlff_triton: TensorNet machine-learning force fields for ASE and OpenMM.

Public names load on first use, so `import mlff_triton` is quick and needs neither a GPU nor Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlff_triton.lazy import attributes

__version__ = "0.1.0"

_HOME_OF = {
    "Engine": "mlff_triton.engine",
    "Ensemble": "mlff_triton.prediction",
    "Graph": "mlff_triton.graph",
    "Prediction": "mlff_triton.prediction",
    "TensorNet": "mlff_triton.tensornet",
    "TensorNetCalculator": "mlff_triton.calculators",
    "TensorNetConfig": "mlff_triton.config",
    "VerletList": "mlff_triton.neighbors",
    "accelerate": "mlff_triton.patch",
    "accelerated": "mlff_triton.patch",
    "create_openmm_force": "mlff_triton.calculators",
    "load_model": "mlff_triton.checkpoints",
    "neighbor_list": "mlff_triton.neighbors",
    "predict": "mlff_triton.prediction",
    "restore": "mlff_triton.patch",
    "save_model": "mlff_triton.checkpoints",
}

__all__ = [
    "Engine",
    "Ensemble",
    "Graph",
    "Prediction",
    "TensorNet",
    "TensorNetCalculator",
    "TensorNetConfig",
    "VerletList",
    "__version__",
    "accelerate",
    "accelerated",
    "create_openmm_force",
    "load_model",
    "neighbor_list",
    "predict",
    "restore",
    "save_model",
]

if TYPE_CHECKING:
    from mlff_triton.calculators import TensorNetCalculator, create_openmm_force
    from mlff_triton.checkpoints import load_model, save_model
    from mlff_triton.config import TensorNetConfig
    from mlff_triton.engine import Engine
    from mlff_triton.graph import Graph
    from mlff_triton.neighbors import VerletList, neighbor_list
    from mlff_triton.patch import accelerate, accelerated, restore
    from mlff_triton.prediction import Ensemble, Prediction, predict
    from mlff_triton.tensornet import TensorNet

__getattr__ = attributes(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return __all__
