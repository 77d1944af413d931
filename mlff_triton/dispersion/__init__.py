"""Corrections for dispersion, which models of many density functionals lack."""
