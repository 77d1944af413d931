"""Operators of the engine in loops that Numba compiles, for CPUs."""
