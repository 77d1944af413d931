"""The benchmark lab: what is measured, against whom, and how it is written down.

``python -m benchmarks --help`` in a checkout, or ``mlff-triton bench --help``.
"""
