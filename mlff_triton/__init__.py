"""TensorNet force fields, protein language models and sequence alignment on Triton kernels.

Public names are imported on first use, so `import mlff_triton` is fast and needs no GPU or Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlff_triton._common.lazy import attributes

_HOME_OF = {
    "Engine": "mlff_triton.engine.engine",
    "Ensemble": "mlff_triton.model.prediction",
    "Graph": "mlff_triton.neighbors.graph",
    "KnownDomain": "mlff_triton.model.known_domain",
    "Prediction": "mlff_triton.model.prediction",
    "TensorNet": "mlff_triton.model.tensornet",
    "TensorNet2": "mlff_triton.model.tensornet2",
    "TensorNet2Config": "mlff_triton.model.config",
    "TensorNetCalculator": "mlff_triton.calculators",
    "TensorNetConfig": "mlff_triton.model.config",
    "UnknownChemistryWarning": "mlff_triton.model.known_domain",
    "VerletList": "mlff_triton.neighbors.verlet_list",
    "__version__": "mlff_triton._common.version",
    "accelerate": "mlff_triton.torchmd_net.patch",
    "accelerated": "mlff_triton.torchmd_net.patch",
    "create_openmm_force": "mlff_triton.calculators",
    "load_model": "mlff_triton.checkpoints",
    "neighbor_list": "mlff_triton.neighbors.neighbor_list",
    "predict": "mlff_triton.model.prediction",
    "predict_files": "mlff_triton.statics",
    "restore": "mlff_triton.torchmd_net.patch",
    "save_model": "mlff_triton.checkpoints",
}

__all__ = [
    "Engine",
    "Ensemble",
    "Graph",
    "KnownDomain",
    "Prediction",
    "TensorNet",
    "TensorNet2",
    "TensorNet2Config",
    "TensorNetCalculator",
    "TensorNetConfig",
    "UnknownChemistryWarning",
    "VerletList",
    "__version__",
    "accelerate",
    "accelerated",
    "create_openmm_force",
    "load_model",
    "neighbor_list",
    "predict",
    "predict_files",
    "restore",
    "save_model",
]

if TYPE_CHECKING:
    from mlff_triton._common.version import __version__
    from mlff_triton.calculators import TensorNetCalculator, create_openmm_force
    from mlff_triton.checkpoints import load_model, save_model
    from mlff_triton.engine.engine import Engine
    from mlff_triton.model.config import TensorNet2Config, TensorNetConfig
    from mlff_triton.model.known_domain import KnownDomain, UnknownChemistryWarning
    from mlff_triton.model.prediction import Ensemble, Prediction, predict
    from mlff_triton.model.tensornet import TensorNet
    from mlff_triton.model.tensornet2 import TensorNet2
    from mlff_triton.neighbors.graph import Graph
    from mlff_triton.neighbors.neighbor_list import neighbor_list
    from mlff_triton.neighbors.verlet_list import VerletList
    from mlff_triton.statics import predict_files
    from mlff_triton.torchmd_net.patch import accelerate, accelerated, restore

__getattr__ = attributes(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return __all__
