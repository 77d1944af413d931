"""Atoms and models to measure on."""
