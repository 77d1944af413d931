"""Fused operators for GPUs, an operator a module: Triton kernels, launchers and autograd.

Nothing is loaded here: import what you need, as in
``from mlff_triton.kernels.ops.tensor_product import tensor_product``. `reference` has the same
operators in plain PyTorch.
"""
