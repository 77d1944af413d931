"""Equivariant convolutions on graphs as fused Triton kernels."""

from mlff_triton.kernels.convolution.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.edge_network import edge_network
from mlff_triton.kernels.convolution.radial_convolution import radial_convolution
