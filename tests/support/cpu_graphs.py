"""A double of CUDA graphs for machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mlff_triton.bio.core import graph_cache
from mlff_triton.bio.core.fast_forward import Options

Outputs = tuple[Tensor, ...]


class Replayed:
    """Runs a function again where a CUDA graph would be replayed."""

    def __init__(self, run: Callable[[], Outputs]) -> None:
        self.run, self.outputs = run, tuple(x.clone() for x in run())

    def replay(self) -> None:
        for own, new in zip(self.outputs, self.run(), strict=True):
            own.copy_(new)


def capture_without_gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the backend that captures graphs: without a GPU, that of PyTorch in its place."""
    if torch.cuda.is_available():
        return "triton"

    def record(run: Callable[[], Outputs], _: object) -> tuple[Replayed, Outputs]:
        graph = Replayed(run)
        return graph, graph.outputs

    monkeypatch.setattr(graph_cache, "record", record)
    monkeypatch.setattr(graph_cache.GraphCache, "_wait_for_last_replay", lambda *_: None)
    monkeypatch.setattr(Options, "captures", lambda self, *_: bool(self.cuda_graph))
    return "torch"
