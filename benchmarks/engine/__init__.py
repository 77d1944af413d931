"""Whole steps of the engine and of its peers."""
