"""Helpers for all packages: files, lazy imports, progress bars, timing and CUDA-graph capture."""
