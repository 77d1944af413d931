"""Helpers for all packages: files, lazy imports, interrupts, progress bars, timing, CUDA graphs."""
