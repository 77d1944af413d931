"""Operators on DNA sequences: convolutions, pooling and attention, forward only."""
