"""Neighbor lists, edges and shells of parts in loops that Numba compiles, for CPUs."""
