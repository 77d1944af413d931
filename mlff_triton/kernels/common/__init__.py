"""Building blocks that all kernels share: tensor algebra, tiles, activations, checks."""
