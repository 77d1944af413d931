"""The same building blocks in plain PyTorch."""
