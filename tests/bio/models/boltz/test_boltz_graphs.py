"""CUDA graphs that blocks of the same shapes share."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.models.structure import block_update
from mlff_triton.testing.tf32 import tf32
from tests.bio.models.structure.cases import inputs, randomize
from tests.support.cpu_graphs import capture_without_gpu

layers = pytest.importorskip("boltz.model.layers.pairformer", reason="boltz is not installed")

TOKENS, PAIRS = 48, 32


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the backend that captures graphs."""
    return capture_without_gpu(monkeypatch)


class Stack(nn.Module):
    """Blocks with weights of their own."""

    def __init__(self) -> None:
        super().__init__()
        heads = {"pairwise_head_width": 8, "pairwise_num_heads": 2}
        self.layers = nn.ModuleList(
            layers.PairformerLayer(TOKENS, PAIRS, 4, v2=True, **heads) for _ in range(3)
        )

    def forward(self, *given: Tensor) -> list[tuple[Tensor, Tensor]]:
        s, z, mask, pair_mask = given
        found = []
        for layer in self.layers:
            s, z = layer(s, z, mask, pair_mask)
            found.append((s, z))
        return found


@pytest.fixture
def stack(device: str) -> nn.Module:
    return randomize(Stack()).to(device)


def run(stack: nn.Module, given: tuple[Tensor, ...]) -> list[Tensor]:
    with torch.inference_mode():
        return [x for pair in stack(*given) for x in pair]


def captured() -> list[Any]:
    """Return the graphs, or None for shapes that occurred once, of all devices."""
    return [g for each in block_update._GRAPHS.values() for g in each._captured.values()]


def test_blocks_share_a_graph(stack, backend, device):
    with bio.accelerated(stack, backend=backend):
        for n, graphs in ((5, 1), (7, 2), (5, 2)):
            given = inputs(2, n, TOKENS, PAIRS, device)
            before = [x.clone() for x in given]
            run(stack, given)
            assert len(captured()) == graphs
            assert None not in captured()
            assert all(map(torch.equal, given, before))


def test_results_are_those_without_graphs(stack, backend, device):
    given = [inputs(2, n, TOKENS, PAIRS, device) for n in (5, 7, 5)]
    with bio.accelerated(stack, backend=backend, cuda_graph=False):
        expected = [run(stack, each) for each in given]
        assert not captured()
    with bio.accelerated(stack, backend=backend):
        found = [run(stack, each) for each in given for _ in range(2)]
    for k, results in enumerate(found):
        assert all(map(torch.equal, results, expected[k // 2]))


def test_weights_may_change(stack, backend, device):
    given = inputs(1, 5, TOKENS, PAIRS, device)
    with bio.accelerated(stack, backend=backend):
        before = run(stack, given)
        with torch.no_grad():
            stack.layers[1].transition_z.fc3.weight.mul_(2)
        after = run(stack, given)
    with bio.accelerated(stack, backend=backend, cuda_graph=False):
        assert all(map(torch.equal, after, run(stack, given)))
    assert all(map(torch.equal, before[:2], after[:2]))
    assert not torch.equal(before[3], after[3])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_share_graphs(copied, stack, backend, device):
    given = inputs(1, 5, TOKENS, PAIRS, device)
    bio.accelerate(stack, backend=backend)
    expected = run(stack, given)
    other = copied(stack)
    assert all(map(torch.equal, run(other, given), expected))
    assert len(captured()) == 1


def test_graphs_are_freed_with_the_last_block(stack, backend, device):
    given = inputs(1, 5, TOKENS, PAIRS, device)
    bio.accelerate(stack, backend=backend)
    run(stack, given)
    assert captured()
    bio.restore(stack)
    gc.collect()
    assert not captured()


def test_the_setting_of_tf32_has_a_graph_of_its_own(stack, backend, device):
    given = inputs(1, 5, TOKENS, PAIRS, device)
    with bio.accelerated(stack, backend=backend):
        for allowed, graphs in ((False, 1), (True, 2), (False, 2)):
            with tf32(allowed=allowed):
                run(stack, given)
            assert len(captured()) == graphs


def test_large_blocks_take_no_graph(stack, backend, device, monkeypatch):
    monkeypatch.setattr(block_update, "_MOST_ELEMENTS", 5 * 5 * PAIRS)
    with bio.accelerated(stack, backend=backend):
        run(stack, inputs(1, 6, TOKENS, PAIRS, device))
        assert not captured()
        run(stack, inputs(1, 5, TOKENS, PAIRS, device))
        assert len(captured()) == 1
    with bio.accelerated(stack, backend=backend, cuda_graph=True):
        run(stack, inputs(1, 6, TOKENS, PAIRS, device))
        assert len(captured()) == 1


@pytest.mark.parametrize("batch", [1, 2])
def test_pairs_of_large_blocks_are_not_copied(stack, backend, batch, device, monkeypatch):
    """Their first update writes those of the graph, and leaves the given ones alone."""
    given = inputs(batch, 6, TOKENS, PAIRS, device)
    before = [x.clone() for x in given]
    with bio.accelerated(stack, backend=backend):
        expected = [run(stack, given) for _ in range(2)]
    copied = mock.Mock(wraps=block_update.copy_all)
    monkeypatch.setattr(block_update, "copy_all", copied)
    monkeypatch.setattr(block_update, "_FEWEST_TO_BEGIN", 6 * 6 * PAIRS - 1)
    with bio.accelerated(stack, backend=backend):
        found = [run(stack, given) for _ in range(2)]
        assert len(captured()) == 1
    assert all(map(torch.equal, given, before))
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))
    assert copied.call_count == 6
    assert all(given[1] is not x for call in copied.call_args_list for x in call.args[0])
