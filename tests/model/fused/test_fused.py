"""Models on fused operators against the plain ones, up to the gradients of losses on forces."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mlff_triton.model.config import TensorNet2Config, TensorNetConfig, ZBLConfig
from mlff_triton.model.fused import fused
from mlff_triton.model.prediction import Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import model_of
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_within, random_cluster

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
        **SMALL, cutoff_upper=3.0, coulomb_cutoff=4.5, charge_channels=4, self_loops=False
    ),
}


def new_model(kind: str, device: str) -> TensorNet:
    torch.manual_seed(0)
    return model_of(CONFIGS[kind]).double().to(device)


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


def small_cell(cutoff: float, device: str) -> tuple[Tensor, ...]:
    """Return a cell of two atoms that are neighbors of their own images, and the cell."""
    cell = torch.tensor([[2.9, 0.0, 0.0], [0.4, 3.1, 0.0], [0.0, 0.3, 3.0]], dtype=torch.float64)
    positions = torch.tensor([[0.1, 0.0, 0.2], [1.4, 1.6, 1.3]], dtype=torch.float64)
    graph = neighbor_list(positions, cutoff, cell, True)
    assert (graph.senders == graph.receivers).any()
    assert (graph.senders != graph.receivers).any()
    numbers = torch.tensor([6, 8])
    return *(t.to(device) for t in (numbers, positions, cell[None])), graph.to(device)


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
