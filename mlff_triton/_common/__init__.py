"""Shared by every room: files, lazy names, progress bars, timing and CUDA-graph capture."""
