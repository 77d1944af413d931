"""Pairwise sequence alignment and edit distance."""
