"""Molecular dynamics in fused kernels: integrators, thermostats and a barostat."""
