"""The same integrators, thermostats and barostat in plain PyTorch."""
