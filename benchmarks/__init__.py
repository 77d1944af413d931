"""Benchmarks of mlff_triton and its peers, with their results.

Run ``python -m benchmarks --help`` in a checkout, or ``mlff-triton bench --help``.
"""
