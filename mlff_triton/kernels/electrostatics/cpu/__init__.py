"""Electrostatics in loops for CPUs."""
