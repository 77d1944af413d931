"""Neighbor lists and edges in plain PyTorch."""
