"""Single points, relaxation and vibrations of structures.

Examples
--------
>>> from ase.build import molecule
>>> from mlff_triton import TensorNetCalculator
>>> from mlff_triton.statics import find_vibrations, relax
>>> water, calculator = molecule("H2O"), TensorNetCalculator(device="cpu", dtype="float64")
>>> *_, last = relax(water, calculator)
>>> last.is_converged
True
>>> len(find_vibrations(water, calculator).frequencies)
3
"""

from mlff_triton.statics.predictions import predict_files
from mlff_triton.statics.relaxation import OPTIMIZERS, RelaxationStep, relax
from mlff_triton.statics.single_points import compute_all, read_frames
from mlff_triton.statics.vibrations import IdealGas, Vibrations, find_vibrations

__all__ = [
    "OPTIMIZERS",
    "IdealGas",
    "RelaxationStep",
    "Vibrations",
    "compute_all",
    "find_vibrations",
    "predict_files",
    "read_frames",
    "relax",
]
