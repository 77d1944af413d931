"""Models on fused operators against the plain ones, up to the gradients of losses on forces."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mlff_triton.model import prediction, tensornet, tensornet2
from mlff_triton.model.config import TensorNet2Config, TensorNetConfig, ZBLConfig
from mlff_triton.model.fused import fused
from mlff_triton.model.fused_layers import operators
from mlff_triton.model.prediction import Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import model_of
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_within, random_cluster
from mlff_triton.training.padding import pad_batch, pad_graph

SMALL = {"elements": (1, 6, 7, 8), "hidden_channels": 8, "num_rbf": 6}
CONFIGS = {
    "tensornet": TensorNetConfig(**SMALL, cutoff_upper=4.0, zbl=ZBLConfig(3.0, 14.4)),
    "MatGL": TensorNetConfig(
        **SMALL,
        cutoff_upper=4.0,
        rbf_type="bessel",
        trainable_rbf=True,
        group="SO(3)",
        self_loops=False,
        activation="swish",
        readout_activation=False,
        head="gated",
    ),
    "tensornet2": TensorNet2Config(
        **SMALL, cutoff_upper=3.0, coulomb_cutoff=4.5, charge_channels=4, repulsion=True
    ),
    "tensornet2, no loops": TensorNet2Config(
        **SMALL,
        cutoff_upper=3.0,
        coulomb_cutoff=4.5,
        charge_channels=4,
        self_loops=False,
        softness_floor=0.02,
    ),
}

ALL_PAIRS = {
    kind: replace(CONFIGS[kind], coulomb_cutoff=None)
    for kind in ("tensornet2", "tensornet2, no loops")
}


def new_model(kind: str, device: str) -> TensorNet:
    return new(CONFIGS[kind], device)


def new(config: TensorNetConfig, device: str) -> TensorNet:
    torch.manual_seed(0)
    return model_of(config).double().to(device)


def molecules(cutoff: float, device: str) -> tuple[Tensor, ...]:
    """Return elements, positions, lists, systems and charges of three molecules, one an atom."""
    sizes = (6, 1, 5)
    images = [random_cluster(n, seed=n) for n in sizes]
    numbers = torch.cat([torch.tensor(atoms.numbers) for atoms in images])
    positions = torch.cat([torch.tensor(atoms.positions) for atoms in images])
    graph = concatenate([neighbor_list(atoms.positions, cutoff) for atoms in images])
    batch = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    charge = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    return *(t.to(device) for t in (numbers, positions, batch, charge)), graph.to(device)


def long_molecules(device: str, *, padded: bool) -> tuple[Tensor, ...]:
    """Return a chain, an atom and two distant atoms, as `molecules` does, with all pairs."""
    chain = torch.tensor([[1.1 * k, 0.3 * (k % 2), 0.2 * (k % 3)] for k in range(7)])
    positions = [chain, torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 0.0], [0.0, 4.0, 5.0]])]
    graph = concatenate([neighbor_list(each, math.inf) for each in positions])
    sizes = torch.tensor([len(each) for each in positions])
    batch = {
        "z": torch.tensor([1, 6, 7, 8, 6, 6, 1, 8, 6, 7]),
        "pos": torch.cat(positions).double(),
        "batch": torch.repeat_interleave(torch.arange(3), sizes),
        "q": torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64),
    }
    if padded:
        batch, graph = pad_batch(batch, 15, 5), pad_graph(graph, 15, graph.n_edges + 14)
    return *(batch[name].to(device) for name in ("z", "pos", "batch", "q")), graph.to(device)


def small_cell(cutoff: float, device: str) -> tuple[Tensor, ...]:
    """Return a cell of two atoms that are neighbors of their own images, and the cell."""
    cell = torch.tensor([[2.9, 0.0, 0.0], [0.4, 3.1, 0.0], [0.0, 0.3, 3.0]], dtype=torch.float64)
    positions = torch.tensor([[0.1, 0.0, 0.2], [1.4, 1.6, 1.3]], dtype=torch.float64)
    graph = neighbor_list(positions, cutoff, cell, True)
    assert (graph.senders == graph.receivers).any()
    assert (graph.senders != graph.receivers).any()
    numbers = torch.tensor([6, 8])
    return *(t.to(device) for t in (numbers, positions, cell[None])), graph.to(device)


def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models behave as in the capture of a CUDA graph."""
    for module in (prediction, tensornet, tensornet2):
        monkeypatch.setattr(module, "is_capturing", lambda _: True)


def gradients(model: TensorNet, found: Prediction) -> list[Tensor]:
    """Return the gradients of a loss on all results by the weights that they depend on."""
    labels = torch.Generator().manual_seed(3)
    loss = torch.zeros((), dtype=torch.float64, device=found.energy.device)
    for tensor in found.tensors.values():
        target = torch.randn(tensor.shape, generator=labels, dtype=torch.float64)
        loss = loss + (tensor - target.to(loss.device)).square().mean()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return [g for g in torch.autograd.grad(loss, weights, allow_unused=True) if g is not None]


def compare(plain: TensorNet, other: TensorNet, *inputs: Tensor | Graph, **options: Tensor) -> None:
    expected, found = (
        predict(model, *inputs, **options, create_graph=True) for model in (plain, other)
    )
    for name, tensor in expected.tensors.items():
        assert_within(found.tensors[name].detach(), tensor.detach(), 1e-10)
    of_plain, of_other = gradients(plain, expected), gradients(plain, found)
    assert len(of_plain) == len(of_other) > 10
    for one, two in zip(of_other, of_plain, strict=True):
        assert_within(one, two, 1e-9)


@pytest.mark.parametrize("op_set", ["triton", "torch"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_molecules(kind, op_set, device):
    model = new_model(kind, device)
    numbers, positions, batch, charge, graph = molecules(model.cutoff, device)
    options = {"batch": batch, "charge": charge}
    compare(model, fused(model, op_set), numbers, positions, graph, **options)


@pytest.mark.parametrize("op_set", ["triton", "torch"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_atoms_that_are_neighbors_of_their_own_images(kind, op_set, device):
    model = new_model(kind, device)
    numbers, positions, cell, graph = small_cell(model.cutoff, device)
    compare(model, fused(model, op_set), numbers, positions, graph, cell=cell)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("op_set", ["triton", "torch"])
@pytest.mark.parametrize("kind", ALL_PAIRS)
def test_pairs_beyond_the_cutoff_of_the_network(
    kind, op_set, padded, captured, device, monkeypatch
):
    model = new(ALL_PAIRS[kind], device)
    numbers, positions, batch, charge, graph = long_molecules(device, padded=padded)
    if captured:
        capture(monkeypatch)
    options = {"batch": batch, "charge": charge}
    compare(model, fused(model, op_set), numbers, positions, graph, **options)


@pytest.mark.parametrize("kind", ALL_PAIRS)
def test_layers_do_not_read_pairs_beyond_the_cutoff(kind, device):
    model = fused(new(ALL_PAIRS[kind], device), "triton")
    numbers, positions, _, _, graph = long_molecules(device, padded=True)
    vectors = graph.vectors(positions, None, None)
    edges = model._near_edges(vectors, graph)
    near = vectors.norm(dim=1) < model.config.network_cutoff
    n_near, n_rows = int(near.sum()), int(near.sum()) // 2 + edges.has_loops
    assert 0 < int(edges.n_near) == n_near < graph.n_edges
    assert int(edges.near_rows) == n_rows
    charges = torch.randn(len(numbers), model.config.charge_channels, device=device).double()
    results = []
    for unread in (0.0, math.nan):
        for tensor, count in ((edges.directions, n_near), (edges.basis, n_rows)):
            tensor[count:] = unread
        x = model.embedding(model.species(numbers), edges)
        results.append(torch.stack([x, model.layers[0](x, edges, charges)]))
    assert torch.equal(*results)


@pytest.mark.parametrize("kind", ALL_PAIRS)
def test_linear_layers_compute_rows_within_the_cutoff_only(kind, device, monkeypatch):
    model = fused(new(ALL_PAIRS[kind], device), "triton")
    numbers, positions, batch, charge, graph = long_molecules(device, padded=True)
    ops, computed = operators("triton"), []
    linear = ops.linear

    def recorded(x: Tensor, *others: Tensor, rows: Tensor | None = None, **options: Tensor):
        computed.append((len(x), len(x) if rows is None else int(rows)))
        return linear(x, *others, rows=rows, **options)

    monkeypatch.setattr(ops, "linear", recorded)
    predict(model, numbers, positions, graph, batch=batch, charge=charge)
    distances = graph.vectors(positions, None, None).norm(dim=1)
    n_near, n_atoms = int((distances < model.config.network_cutoff).sum()), len(numbers)
    loops = model.config.self_loops
    of_pairs = graph.n_edges // 2 + loops, n_near // 2 + loops
    of_edges = graph.n_edges + loops * n_atoms, n_near + loops * n_atoms
    assert computed.count(of_pairs) == 1
    assert computed.count(of_edges) == 3 * model.config.num_layers
    assert {all_rows for all_rows, _ in computed} == {of_pairs[0], of_edges[0], n_atoms}


@pytest.mark.parametrize("kind", ALL_PAIRS)
def test_a_capture_needs_no_values_of_tensors(kind, monkeypatch):
    """Tensors without values stand for those of a GPU during a capture."""
    model = new(ALL_PAIRS[kind], "cpu")
    numbers, positions, batch, charge, graph = long_molecules("cpu", padded=True)
    capture(monkeypatch)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = mode.from_tensor(numbers), mode.from_tensor(positions), graph.map(mode.from_tensor)
        options = {"batch": mode.from_tensor(batch), "charge": mode.from_tensor(charge)}
        found = predict(fused(model, "torch"), *inputs, **options, create_graph=True, n_systems=5)
        assert found.forces.shape == positions.shape


def test_no_edges(device):
    model = new_model("tensornet", device)
    positions = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 50.0]], dtype=torch.float64)
    graph = neighbor_list(positions, model.cutoff)
    numbers = torch.tensor([1, 8])
    inputs = numbers.to(device), positions.to(device), graph.to(device)
    compare(model, fused(model, "triton"), *inputs)


def test_weights_are_shared_and_classes_are_not(device):
    model = new_model("tensornet", device)
    other = fused(model, "triton")
    types = [type(module) for module in model.modules()]
    assert [type(module) for module in other.modules()] != types
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert one is two
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.mul_(1.1)
    model.load_state_dict(changed.state_dict())
    numbers, positions, batch, charge, graph = molecules(model.cutoff, device)
    options = {"batch": batch, "charge": charge}
    expected = predict(changed, numbers, positions, graph, **options)
    found = predict(other, numbers, positions, graph, **options)
    assert_within(found.forces, expected.forces, 1e-10)


def test_uncertainties(device):
    model = new_model("tensornet", device)
    channels = model.readout.head.last_channels
    model.readout.uncertainty = torch.randn(3, channels, dtype=torch.float64, device=device)
    numbers, positions, batch, charge, graph = molecules(model.cutoff, device)
    found = [
        predict(each, numbers, positions, graph, batch=batch, charge=charge).uncertainty
        for each in (model, fused(model, "triton"))
    ]
    assert_within(found[1], found[0], 1e-10)


def test_models_on_a_cpu_stay_plain():
    model = model_of(replace(CONFIGS["tensornet"], hidden_channels=4))
    assert fused(model) is model


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CONFIGS)
def test_models_on_a_gpu_are_fused(kind):
    model = new_model(kind, "cuda").float()
    numbers, positions, batch, charge, graph = molecules(model.cutoff, "cuda")
    options = {"batch": batch, "charge": charge}
    exact = predict(copy.deepcopy(model).double(), numbers, positions, graph, **options)
    other = fused(model)
    assert other is not model
    found = predict(other, numbers, positions, graph, **options)
    assert_within(found.forces, exact.forces, 1e-5)
