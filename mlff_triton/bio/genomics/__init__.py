"""Adapters for models of DNA sequences."""
