"""Every operator in plain PyTorch: exact in float64, and what kernels are held to."""
