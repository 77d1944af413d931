"""Equivariant convolutions on graphs, which never store the weights of edges."""
