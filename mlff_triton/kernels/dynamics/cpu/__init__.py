"""Integrator and thermostats in loops that Numba compiles, for CPUs."""
