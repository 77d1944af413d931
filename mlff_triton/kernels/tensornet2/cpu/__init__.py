"""Operators of TensorNet2 in loops that Numba compiles, for CPUs."""
