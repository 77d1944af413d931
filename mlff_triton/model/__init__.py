"""The exact model, the reference for every fast implementation."""
