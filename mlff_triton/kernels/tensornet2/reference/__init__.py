"""Operators of TensorNet2 in plain PyTorch."""
