"""Electrostatics in plain PyTorch."""
