"""CUDA graphs of a function, captured per combination of input shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.bio.core.graph_cache import GraphCache

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


class CountedFunction:
    """Function that counts how often Python runs it."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, inputs: list[Tensor | None], option: int) -> tuple[Tensor]:
        self.n += 1
        x, y = inputs
        return (x * option if y is None else x + y,)


def test_a_shape_is_recorded_when_it_comes_again():
    function = CountedFunction()
    graphs = GraphCache(function)
    results = [graphs([torch.full((4,), float(k), device="cuda"), None], 2)[0] for k in range(5)]
    assert function.n == 3  # the first call, the warm-up before the capture, and the capture
    assert [float(r[0]) for r in results] == [0, 2, 4, 6, 8]  # later replays do not overwrite them


def test_shapes_can_be_captured_at_once():
    function, x = CountedFunction(), torch.ones(4, device="cuda")
    graphs = GraphCache(function, at_once=True)
    assert [float(graphs([k * x, None], 2)[0][0]) for k in range(3)] == [0, 2, 4]
    assert function.n == 2  # the warm-up before the capture, and the capture


def test_inputs_can_be_written_instead_of_copied():
    graphs, x = GraphCache(CountedFunction(), overwrites=True), torch.ones(4, device="cuda")

    def fill(own: list[Tensor | None]) -> None:
        first, second = own
        assert first is not None
        assert second is None
        torch.mul(x, 3, out=first)

    assert [float(graphs([x, None], 2, (), fill)[0][0]) for _ in range(4)] == [6] * 4
    assert float(graphs([x, None], 2)[0][0]) == 2
    assert float(x.sum()) == 4


def test_options_and_missing_inputs_have_graphs_of_their_own():
    graphs, x = GraphCache(CountedFunction()), torch.ones(3, device="cuda")
    for _ in range(3):
        assert float(graphs([x, None], 2)[0].sum()) == 6
        assert float(graphs([x, None], 5)[0].sum()) == 15
        assert float(graphs([x, x], 5)[0].sum()) == 6


def test_shapes_used_longest_ago_are_forgotten():
    function, capacity = CountedFunction(), 4
    graphs = GraphCache(function, capacity)
    for _ in range(2):
        for size in range(1, capacity + 1):
            graphs([torch.ones(size, device="cuda"), None], 1)
    before = function.n
    graphs([torch.ones(capacity + 1, device="cuda"), None], 1)
    assert graphs.replay([torch.ones(1, device="cuda"), None], 1) is None
    assert graphs.replay([torch.ones(2, device="cuda"), None], 1) is not None
    assert function.n == before + 1


def test_constants_are_copied_when_they_are_others():
    function = CountedFunction()
    graphs, x = GraphCache(function), torch.ones(3, device="cuda")
    constants = [torch.full((3,), float(k), device="cuda") for k in range(2)]
    results = [graphs([x], 1, [constants[k]])[0] for k in (0, 0, 0, 1, 1, 0)]
    assert function.n == 3
    assert [float(r[0]) for r in results] == [1, 1, 1, 2, 2, 1]
    constants[1] = torch.full((3,), 5.0, device="cuda")  # may have the address of the last one
    assert float(graphs.replay([x], 1, [constants[1]])[0][0]) == 6


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_any_mode_may_follow_any_other(first):
    graphs, x = GraphCache(CountedFunction()), torch.ones(3, device="cuda")
    with first():
        graphs([x, None], 3)
        graphs([x, None], 3)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert float(graphs([x, None], 3)[0].sum()) == 9


def test_streams_wait_for_each_other():
    graphs = GraphCache(CountedFunction())
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for k in range(30):
        with torch.cuda.stream(streams[k % 3]):
            results.append(graphs([torch.full((1 << 20,), float(k), device="cuda"), None], 1)[0])
    torch.cuda.synchronize()
    assert [float(r.mean()) for r in results] == list(range(30))
