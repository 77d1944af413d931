"""Training of models on energies and forces, at the speed of the kernels."""
