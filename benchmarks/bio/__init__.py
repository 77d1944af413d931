"""Protein language models and sequence alignment."""
