"""Neighbor lists and edges on the GPU."""
