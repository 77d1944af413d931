"""Plain PyTorch versions of the public operators."""
