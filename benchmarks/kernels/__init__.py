"""Single operators against PyTorch."""
