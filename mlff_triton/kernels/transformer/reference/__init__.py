"""Plain PyTorch versions of the operators for Transformer encoders."""
