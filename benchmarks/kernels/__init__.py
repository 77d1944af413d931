"""Single operators, compared with PyTorch."""
