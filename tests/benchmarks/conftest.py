from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.engine import peers, runner
from benchmarks.kernels import edge_messages, radial_messages
from benchmarks.lab import guards
from benchmarks.lab.lab import Budget, Lab
from benchmarks.lab.schema import Results
from benchmarks.systems import models
from mlff_triton._common import timing
from tests.support.benchmark_rows import CPU, WHERE, row


@pytest.fixture
def small_model(monkeypatch) -> Iterator[None]:
    """Replace the random model with a small one."""
    monkeypatch.setitem(models.MODELS, "random", partial(models.random_model, 8))
    caches = (
        *(models.model, runner.truth),
        *(radial_messages._box, radial_messages._network, radial_messages._tables),
        *(edge_messages._edges, edge_messages._weights),
    )
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture(autouse=True)
def _default_peers() -> Iterator[None]:
    """Undo the selection of operators that rebuilding a peer makes for the whole process."""
    yield
    if "torchmdnet.models.tensornet" in sys.modules:
        peers.select_operators(warp=True)


@pytest.fixture(autouse=True)
def _garbage_in_memory_of_a_gpu(monkeypatch) -> None:
    """Collect garbage between implementations only for a GPU, as it takes a third of the time."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(guards, "gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab(CPU, WHERE, Results(tmp_path), Budget(sampling=0.01))


@pytest.fixture
def gpu_lab(tmp_path) -> Lab:
    device = torch.device("cuda")
    return Lab(device, timing.environment(device), Results(tmp_path), Budget(sampling=0.05))


@pytest.fixture
def measured(tmp_path) -> Path:
    """Results of several benchmarks in a folder."""
    rows = [
        row(case=str(n), impl=impl, ms=ms * n / 21, atoms=n)
        for n in (21, 4096)
        for impl, ms in (("engine", 0.1), ("torch", 10.0), ("warp", 11.0), ("warp-graph", 1.5))
    ]
    rows.append(row(case="65536", impl="engine", ms=20.0, atoms=65536))
    rows.append(row(case="65536", impl="torch", ms=None, atoms=65536))
    rows += [replace(r, bench="md17", case="ethanol") for r in rows[:4]]
    rows += [replace(r, bench="md22", case="DHA") for r in rows[:4]]
    rows += [row(bench="ase", ms=0.1), row(bench="ase", impl="calculator", ms=0.25)]
    Results(tmp_path).add(rows)
    return tmp_path
