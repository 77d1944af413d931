"""Building blocks of the references, in plain PyTorch."""
