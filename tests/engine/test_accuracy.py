from __future__ import annotations

import torch

from mlff_triton import Engine
from mlff_triton.testing.structures import random_cluster


def test_loops_in_float32_are_as_accurate_as_the_exact_module():
    """Compare forces of several systems with those of the exact module in float64."""
    clusters = [random_cluster(23, seed=seed) for seed in range(10)]

    def forces(backend, dtype):
        engine = Engine("default", device="cpu", backend=backend, dtype=dtype)
        found = [engine.compute(c.numbers, c.positions).forces for c in clusters]
        return torch.cat(found).double()

    truth = forces("exact", torch.float64)
    loops, exact = (forces(backend, torch.float32) - truth for backend in ("cpu", "exact"))
    assert loops.norm() <= exact.norm()
    assert loops.abs().max() < 1e-5 * truth.abs().max()
