"""Integrators, thermostats and barostat in plain PyTorch."""
