"""Number of operators that a call of an accelerated model dispatches."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mlff_triton import bio
from mlff_triton.bio.models.diffdock import adapter
from mlff_triton.bio.models.diffdock.edges import Edges

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TorchScript, which e3nn compiles when it is imported
    pytest.importorskip("e3nn", reason="e3nn is not installed")
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    from tests.bio.models.diffdock import batches, support

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("quick_products"),
]

KINDS = ("CGOldModel", "CGModel")
MOST = 30
"""Operators of a layer, views included."""


class OneEach:
    """Operators that dispatch one operator of PyTorch each."""

    def edge_network(self, features: Tensor, *others: Any) -> Tensor:
        return features.new_zeros(len(features), others[1].shape[1])

    def edge_convolution(self, node: Tensor, *others: Any) -> Tensor:
        return node.new_zeros(len(others[4]) - 1, others[6].n_outputs)


class Count(TorchDispatchMode):
    """Number of operators that PyTorch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.total += 1
        return function(*args, **(kwargs or {}))


def dispatched(kind: str, layers: int) -> int:
    """Return the number of operators of a call of a model with some layers."""
    model = support.make_model(kind, {"num_conv_layers": layers})
    data = batches.make_batch([(4, 6), (5, 7)], 3.0)
    with torch.no_grad(), bio.accelerated(model, backend="torch"):
        model(data)
        with Count() as found:
            model.forward.compute({"data": data}, None)
    return found.total


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_dispatches_few_operators(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers differ by their number alone, whatever versions of packages do around them."""
    monkeypatch.setattr(adapter, "convolution_operators", lambda _: OneEach())
    per_layer = dispatched(kind, 5) - dispatched(kind, 4)
    assert 0 < per_layer <= MOST


@pytest.mark.parametrize("kind", KINDS)
def test_contacts_of_residues_are_sorted_once_for_many_calls(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = support.make_model(kind, {}), batches.make_batch([(4, 6), (5, 7)], 3.0)
    contacts = data["receptor", "receptor"]
    sizes = []
    with torch.inference_mode(), bio.accelerated(model, backend="torch"):
        expected = model(data)[0]
        model.forward.prepare(data, 0.5)
        edges_of = Edges.of

        def noted(receivers: Tensor, *others: Any) -> Edges:
            sizes.append(len(receivers))
            return edges_of(receivers, *others)

        monkeypatch.setattr(Edges, "of", noted)
        model.forward.prepare(data, 0.5)
        assert torch.equal(model(data)[0], expected)
        assert contacts.edge_index.shape[1] not in sizes
        contacts.edge_index = contacts.edge_index.clone()
        assert torch.equal(model(data)[0], expected)
        assert contacts.edge_index.shape[1] in sizes


@pytest.mark.parametrize(("kind", "begun"), [("CGOldModel", 1), ("CGModel", 0)])
def test_neighbors_are_searched_before_layers_that_need_them_are_queued(
    kind: str, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits for the numbers of neighbors, bonds and norms of scores.

    The first layer of residues may be queued before, so that the device does not wait, too.
    """
    order: list[str] = []

    class Noted(OneEach):
        def edge_convolution(self, node: Tensor, *others: Any) -> Tensor:
            order.append("layer")
            return super().edge_convolution(node, *others)

    def noting(name: str, function: Any) -> Any:
        return lambda *args, **options: (order.append(name), function(*args, **options))[1]

    monkeypatch.setattr(adapter, "convolution_operators", lambda _: Noted())
    model, data = support.make_model(kind, {}), batches.make_batch([(4, 6), (5, 7)], 3.0)
    used = type(model).forward.__globals__
    for name in ("radius", "radius_graph"):
        monkeypatch.setitem(used, name, noting(name, used[name]))
    for name in ("so3", "torus"):
        monkeypatch.setattr(used[name], "score_norm", noting(name, used[name].score_norm))
    with torch.inference_mode(), bio.accelerated(model, backend="torch"):
        model(data)
        order.clear()
        model(data)
    searches = ["radius", "radius", "radius_graph", "so3", "torus"]
    before = order[: len(searches) + begun]
    assert sorted(before) == ["layer"] * begun + searches
    assert set(order[len(before) :]) == {"layer"}
