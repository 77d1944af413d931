"""Launches for whose graph a GPU has too little memory."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from mlff_triton._common.cuda_graphs import GraphPool
from mlff_triton.engine import step_graph
from mlff_triton.engine.step_graph import StepGraph


class Launches:
    """Counts launches and captures, of which some fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches = self.captures = 0
        self.fails = True
        monkeypatch.setattr(step_graph, "record", self.record)
        monkeypatch.setattr(step_graph, "compile_ahead", lambda _: None)

    def launch(self) -> str:
        self.launches += 1
        return "launched"

    def record(self, *_: object) -> tuple[mock.Mock, str]:
        self.captures += 1
        if self.fails:
            raise torch.OutOfMemoryError
        return mock.Mock(), "captured"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def test_launches_go_on_without_a_graph_until_buffers_change(launches, caplog):
    graph: StepGraph[str] = StepGraph(GraphPool())
    assert [graph.run(launches.launch, 0) for _ in range(3)] == ["launched"] * 3
    assert (launches.captures, launches.launches) == (1, 3)
    assert caplog.text.count("no memory for a CUDA graph") == 1
    launches.fails = False
    assert [graph.run(launches.launch, 1) for _ in range(3)] == ["captured"] * 3
    assert (launches.captures, launches.launches) == (2, 3)


def test_launches_that_lack_memory_without_a_graph_raise(launches):
    graph: StepGraph[str] = StepGraph(GraphPool())
    fails = mock.Mock(side_effect=torch.OutOfMemoryError)
    with pytest.raises(torch.OutOfMemoryError):
        graph.run(fails, 0)
    assert graph.run(launches.launch, 0) == "launched"
    assert launches.captures == 2


def test_functions_that_keep_state_are_not_called_again(launches):
    graph: StepGraph[str] = StepGraph(GraphPool(), keeps_state=True)
    with pytest.raises(torch.OutOfMemoryError):
        graph.run(launches.launch, 0)
    assert launches.launches == 0
