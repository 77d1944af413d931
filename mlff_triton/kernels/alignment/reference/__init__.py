"""Pairwise sequence alignment in plain PyTorch."""
