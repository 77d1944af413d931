"""Data types shared by kernels, references and the engine."""
