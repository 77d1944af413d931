"""Fused operators of the engine, with explicit backward passes instead of autograd."""
