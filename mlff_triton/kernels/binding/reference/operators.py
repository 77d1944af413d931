"""Operators on complexes of proteins and ligands in plain PyTorch."""

from mlff_triton.kernels.binding.reference.complex_tokens import complex_tokens
from mlff_triton.kernels.binding.reference.contact_energy import contact_energy
from mlff_triton.kernels.binding.reference.frame_attention import frame_attention
from mlff_triton.kernels.binding.reference.frame_network import frame_network
from mlff_triton.kernels.binding.reference.principal_axes import principal_axes
