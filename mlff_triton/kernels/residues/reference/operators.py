"""Operators on residues in plain PyTorch."""

from mlff_triton.kernels.residues.reference.decode import decode
from mlff_triton.kernels.residues.reference.edge_update import edge_update
from mlff_triton.kernels.residues.reference.nearest_residues import nearest_residues
from mlff_triton.kernels.residues.reference.project import project
from mlff_triton.kernels.residues.reference.residue_edges import residue_edges
from mlff_triton.kernels.residues.reference.residue_update import residue_update
