"""Fused operators for GPUs, one per module: Triton kernels, launchers and autograd.

This package imports nothing by itself. Import operators from their modules, as in
``from mlff_triton.kernels.ops.tensor_product import tensor_product``. The ``reference`` folder of
each family holds the same operators in plain PyTorch.
"""
