"""Operators for Transformer encoders over packed rows of tokens."""
