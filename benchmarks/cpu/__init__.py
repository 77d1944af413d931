"""Evaluations, simulations, first calls and LAMMPS on CPUs."""
