"""An accelerated TensorNet or TensorNet2 on the kernels, up to second derivatives.

`tests/torchmd_net/test_patch.py` tests the rest.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mlff_triton.testing import assert_close, random_cluster, random_crystal
from mlff_triton.torchmd_net.patch import accelerate, accelerated
from tests.support.torchmd_net import import_torchmdnet, use_plain_operations

OPTIONS: dict[str, dict[str, Any]] = {
    "O(3)": {"activation": "ssp"},
    "SO(3)": {"equivariance_invariance_group": "SO(3)"},
    "static shapes": {"static_shapes": True, "max_num_neighbors": 8},
    "one layer": {"num_layers": 1, "trainable_rbf": True},
}
CHARGED = {"q_dim": 3, "num_layers": 1, "output_charges": True}


@pytest.fixture
def make_network(monkeypatch, device):
    """Function that makes networks on PyTorch operations instead of Warp kernels."""
    torchmdnet = import_torchmdnet()
    use_plain_operations(torchmdnet, monkeypatch)

    def make(*, charged: bool = False, **options: Any) -> nn.Module:
        models = torchmdnet.models
        kind = models.tensornet2.TensorNet2 if charged else models.tensornet.TensorNet
        torch.set_default_dtype(torch.float64)  # the dtype of the constant in its softplus
        try:
            defaults = {"hidden_channels": 8, "num_rbf": 5, "static_shapes": False, "max_z": 20}
            return kind(**(defaults | options)).double().to(device)
        finally:
            torch.set_default_dtype(torch.float32)

    return make


def inputs(device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return two charged molecules, one of them a single atom."""
    images = [random_cluster(n, seed=n) for n in (5, 1)]
    numbers, positions = (
        torch.cat([torch.from_numpy(getattr(atoms, name)) for atoms in images])
        for name in ("numbers", "positions")
    )
    batch, charge = torch.tensor([0] * 5 + [1]), torch.tensor([-2, 1])
    tensors = {"z": numbers, "batch": batch, "q": charge, "pos": positions.to(dtype)}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def training_step(network: nn.Module, inputs: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], ...]:
    """Compute features, forces, and the gradients of a loss on the forces."""
    positions = inputs["pos"].requires_grad_()
    features = network(**inputs)[0]
    (forces,) = torch.autograd.grad(features.square().sum(), positions, create_graph=True)
    parameters = [*network.parameters(), positions]
    gradients = torch.autograd.grad(forces.square().sum(), parameters, allow_unused=True)
    return (features,), (forces,), tuple(g for g in gradients if g is not None)


@pytest.mark.parametrize(
    ("option", "dtype"),
    [
        ("O(3)", torch.float32),
        ("SO(3)", torch.float64),
        ("static shapes", torch.float32),
        ("one layer", torch.float64),
    ],
)
def test_training_is_that_of_torchmd_net(make_network, option, device, dtype):
    assert_same_training(make_network(**OPTIONS[option]), device, dtype)


@pytest.mark.parametrize(
    ("option", "dtype"),
    [("O(3)", torch.float64), ("SO(3)", torch.float32), ("static shapes", torch.float32)],
)
def test_training_with_charges_is_that_of_torchmd_net(make_network, option, device, dtype):
    network = make_network(charged=True, **(OPTIONS[option] | CHARGED))
    assert_same_training(network, device, dtype)


def assert_same_training(network: nn.Module, device: str, dtype: torch.dtype) -> None:
    truth = training_step(network, inputs(device, torch.float64))
    network.to(dtype)
    with accelerated(network, "triton"):
        found = training_step(network, inputs(device, dtype))
    for order, pairs in enumerate(zip(found, truth, strict=True)):
        for actual, expected in zip(*pairs, strict=True):
            assert actual.dtype == dtype
            assert_close(actual, expected, order, dtype)


class HostTensors(TorchDispatchMode):
    """Counts tensors that are made of Python numbers, and thus copied from the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.lift_fresh.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("charged", [False, True])
def test_training_copies_nothing_from_the_host(make_network, device, charged):
    options = {"static_shapes": True, "max_num_neighbors": 8, "num_layers": 1}
    network = make_network(charged=charged, **options).float()
    tensors = inputs(device, torch.float32)
    with accelerated(network, "triton"), HostTensors() as made:
        training_step(network, tensors)
    assert made.count == 0


def test_a_periodic_box(make_network, device):
    network = make_network(cutoff_upper=3.0)
    atoms = random_crystal(8, "triclinic", seed=2)
    atoms.set_cell([[7.0, 0, 0], [1.0, 7.0, 0], [-1.0, 0.5, 7.0]], scale_atoms=True)
    box = {
        "z": torch.from_numpy(atoms.numbers),
        "pos": torch.from_numpy(atoms.positions),
        "batch": torch.zeros(len(atoms), dtype=torch.int64),
        "box": torch.from_numpy(atoms.cell.array),
    }
    box = {name: tensor.to(device) for name, tensor in box.items()}
    expected = network(**box)[0]
    assert_close(accelerate(network, "triton")(**box)[0], expected, 0)


@pytest.mark.gpu
def test_static_shapes_are_captured_in_a_cuda_graph(make_network):
    network = make_network(static_shapes=True, max_num_neighbors=8).requires_grad_(False)
    tensors = inputs("cuda", torch.float64)

    def forces() -> Tensor:
        positions = tensors["pos"].detach().requires_grad_()
        return torch.autograd.grad(network(**(tensors | {"pos": positions}))[0].sum(), positions)[0]

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with accelerated(network, "triton"):
        with torch.cuda.stream(stream):
            forces()  # compile
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = forces()
    tensors["pos"] += 0.1 * torch.randn_like(tensors["pos"])
    graph.replay()
    assert_close(captured, forces(), 1)
