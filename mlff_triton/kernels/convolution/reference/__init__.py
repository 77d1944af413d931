"""The same operators in plain PyTorch."""
