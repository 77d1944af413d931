"""Equivariant convolutions on graphs in plain PyTorch."""

from mlff_triton.kernels.convolution.reference.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.reference.edge_network import edge_network
from mlff_triton.kernels.convolution.reference.radial_convolution import radial_convolution
