"""Operators on residues as fused Triton kernels."""

from mlff_triton.kernels.residues.decode import decode
from mlff_triton.kernels.residues.edge_update import edge_update
from mlff_triton.kernels.residues.nearest_residues import nearest_residues
from mlff_triton.kernels.residues.project import project
from mlff_triton.kernels.residues.residue_edges import residue_edges
from mlff_triton.kernels.residues.residue_update import residue_update
