"""Helpers for all packages: files, interrupts, progress bars, timing, CUDA graphs."""
