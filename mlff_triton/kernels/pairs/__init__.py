"""Operators on representations of pairs of tokens, for structure prediction, forward only."""
