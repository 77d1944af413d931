"""Compilation of loops for CPUs, tensors of an atom, and radial tables."""
