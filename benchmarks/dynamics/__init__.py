"""Simulations with moving atoms: the command, our calculators and their peers."""
