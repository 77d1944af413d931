"""Operators of the engine in plain PyTorch."""
