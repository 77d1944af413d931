"""mlff_triton: TensorNet machine-learning force fields for ASE and OpenMM.

Public names load on first use, so `import mlff_triton` is quick and needs neither a GPU nor Triton.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME_OF = {
    "Ensemble": "mlff_triton.tensornet",
    "Graph": "mlff_triton.graph",
    "Prediction": "mlff_triton.tensornet",
    "TensorNet": "mlff_triton.tensornet",
    "TensorNetCalculator": "mlff_triton.calculators",
    "TensorNetConfig": "mlff_triton.tensornet",
    "VerletList": "mlff_triton.neighbors",
    "load_model": "mlff_triton.checkpoints",
    "neighbor_list": "mlff_triton.neighbors",
    "predict": "mlff_triton.tensornet",
    "save_model": "mlff_triton.checkpoints",
}

__all__ = ["__version__", *sorted(_HOME_OF)]

if TYPE_CHECKING:
    from mlff_triton.calculators import TensorNetCalculator
    from mlff_triton.checkpoints import load_model, save_model
    from mlff_triton.graph import Graph
    from mlff_triton.neighbors import VerletList, neighbor_list
    from mlff_triton.tensornet import Ensemble, Prediction, TensorNet, TensorNetConfig, predict


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mlff_triton' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
