"""Operators on complexes of proteins and ligands as fused Triton kernels."""

from mlff_triton.kernels.binding.complex_tokens import complex_tokens
from mlff_triton.kernels.binding.contact_energy import contact_energy
from mlff_triton.kernels.binding.frame_attention import frame_attention
from mlff_triton.kernels.binding.frame_network import frame_network
from mlff_triton.kernels.binding.principal_axes import principal_axes
