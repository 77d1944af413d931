"""Neighbor lists and edges on a GPU."""
