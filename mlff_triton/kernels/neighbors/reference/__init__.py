"""Neighbor lists in plain PyTorch."""
