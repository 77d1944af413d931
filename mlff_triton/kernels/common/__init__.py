"""Building blocks shared by all kernels: checks, launch sizes, tiles, activations."""
