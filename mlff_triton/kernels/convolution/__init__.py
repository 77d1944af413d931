"""Equivariant convolutions on graphs, whose weights per edge are never stored."""
