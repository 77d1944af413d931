"""The public operators in plain PyTorch."""
