"""References of the operators on complexes, in plain PyTorch."""
