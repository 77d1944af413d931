"""The engine's operators in plain PyTorch."""
