"""Rows of results for tests of the benchmarks."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.lab.schema import Row, make_row
from mlff_triton._common.timing import Environment, Timing

CPU = torch.device("cpu")
WHERE = Environment("a GPU", "2.11", "3.6", "abc1234", "2026-01-02")


def row(case: str = "21", impl: str = "engine", ms: float | None = 1.0, **changes) -> Row:
    """Make a row of bench "step", with any of its columns changed."""
    times = None if ms is None else Timing(0.9 * ms, ms, 1.1 * ms, 512.0)
    made = make_row("step", case, impl, (int(changes.pop("atoms", 21)), 332), WHERE, times, 1e-7)
    return replace(made, **changes)
