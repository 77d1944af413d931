"""Data types that kernels, references and the engine share."""
