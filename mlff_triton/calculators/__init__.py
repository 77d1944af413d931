"""Front ends: TensorNet for ASE."""

from mlff_triton.calculators.ase_calculator import TensorNetCalculator

__all__ = ["TensorNetCalculator"]
