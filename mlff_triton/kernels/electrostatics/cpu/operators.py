"""The operators of a field in loops for CPUs, see `mlff_triton.kernels.electrostatics.protocol`."""

from __future__ import annotations

from mlff_triton.kernels.electrostatics.cpu.cross_pairs import gradients_of, potentials_at
from mlff_triton.kernels.electrostatics.cpu.mesh_field import (
    mesh_places,
    mesh_potential,
    mesh_values,
)

__all__ = ["gradients_of", "mesh_places", "mesh_potential", "mesh_values", "potentials_at"]
