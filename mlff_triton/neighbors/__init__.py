"""Neighbor lists on the CPU, and the graph that they produce."""
