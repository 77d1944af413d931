"""Training of our own module: padded batches, and captured steps, against ordinary ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from mlff_triton.model import prediction, tensornet, tensornet2
from mlff_triton.model.config import TensorNet2Config, TensorNetConfig, ZBLConfig
from mlff_triton.model.prediction import predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import TensorNet2
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_within, random_cluster
from mlff_triton.training.padding import pad_batch, pad_graph
from mlff_triton.training.step import TrainingStep

ELEMENTS = (1, 6, 7, 8)
SMALL = {"elements": ELEMENTS, "hidden_channels": 8, "num_layers": 2, "num_rbf": 6}
CONFIGS = {
    "tensornet": TensorNetConfig(**SMALL, cutoff_upper=4.0),
    "neutral": TensorNetConfig(**SMALL, cutoff_upper=4.0, uses_charge=False),
    "repulsive": TensorNetConfig(**SMALL, cutoff_upper=4.0, zbl=ZBLConfig(3.0, 14.4)),
    "tensornet2": TensorNet2Config(
        **SMALL,
        cutoff_upper=3.0,
        coulomb_cutoff=4.5,
        charge_channels=4,
        repulsion=True,
        softness_floor=0.02,
    ),
}
ROOM = 24, 6, 400  # atoms, molecules and edges of padded batches
LISTED = ("row_ptr", "senders", "shifts", "reverse")
SIZES = [(7, 1, 5), (6, 6), (3, 4, 5, 2), (9, 5)]


def new_model(kind: str) -> TensorNet:
    torch.manual_seed(0)
    config = CONFIGS[kind]
    model = TensorNet2(config) if isinstance(config, TensorNet2Config) else TensorNet(config)
    model.mean.fill_(0.7)
    return model.double().train()


def labeled(sizes: tuple[int, ...], cutoff: float, *, charged: bool) -> dict[str, Tensor]:
    """Make a batch of molecules with random labels and neighbor lists, float64."""
    images = [random_cluster(n, seed=n) for n in sizes]
    graph = concatenate([neighbor_list(atoms.positions, cutoff) for atoms in images])
    batch = {
        "z": torch.cat([torch.tensor(atoms.numbers) for atoms in images]),
        "pos": torch.cat([torch.tensor(atoms.positions) for atoms in images]),
        "batch": torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
        "q": torch.arange(len(sizes), dtype=torch.float64) % 2 * charged,
        "energy": torch.randn(len(sizes), dtype=torch.float64),
    }
    return batch | {"forces": torch.randn_like(batch["pos"])} | tensors_of(graph)


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    return {name: getattr(graph, name) for name in LISTED}


def padded(batch: dict[str, Tensor], room: tuple[int, int, int]) -> dict[str, Tensor]:
    """Pad a batch and its neighbor list."""
    n_atoms, n_molecules, n_edges = room
    graph = Graph(**{name: batch[name] for name in LISTED})
    rest = {name: tensor for name, tensor in batch.items() if name not in LISTED}
    return pad_batch(rest, n_atoms, n_molecules) | tensors_of(pad_graph(graph, n_atoms, n_edges))


def loss_of(model: TensorNet, batch: dict[str, Tensor]) -> Tensor:
    """Compute the mean squared error of energies and forces, of all that is not filler."""
    found = predict(
        model,
        batch["z"],
        batch["pos"],
        Graph(**{name: batch[name] for name in LISTED}),
        batch=batch["batch"],
        charge=batch["q"],
        create_graph=True,
        n_systems=len(batch["q"]),
    )
    energy_error = (found.energy - batch["energy"]).square()
    force_error = (found.forces - batch["forces"]).square().mean(1)
    if "atom_mask" not in batch:
        return energy_error.mean() + force_error.mean()
    molecules, atoms = batch["molecule_mask"], batch["atom_mask"]
    energy_loss = (energy_error * molecules).sum() / molecules.sum()
    return energy_loss + (force_error * atoms).sum() / atoms.sum()


def data_of(model: TensorNet) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    return [labeled(sizes, model.cutoff, charged=model.uses_charge) for sizes in SIZES]


@pytest.mark.parametrize("kind", CONFIGS)
def test_padding_changes_neither_the_loss_nor_its_gradients(kind):
    model = new_model(kind)
    for batch in data_of(model):
        results = []
        for each in (batch, padded(batch, ROOM)):
            model.zero_grad()
            loss = loss_of(model, each)
            loss.backward()
            grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            results.append([loss.detach(), *grads])
        for found, expected in zip(*results, strict=True):
            assert_within(found, expected, 1e-10)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_number_of_systems_may_be_given(kind):
    model = new_model(kind)
    batch = data_of(model)[0]
    graph = Graph(**{name: batch[name] for name in LISTED})
    given = model, batch["z"], batch["pos"], graph
    options = {"batch": batch["batch"], "charge": batch["q"]}
    found = predict(*given, **options, n_systems=3)
    expected = predict(*given, **options)
    for name, tensor in found.tensors.items():
        assert torch.equal(tensor, expected.tensors[name])


@pytest.mark.parametrize("kind", CONFIGS)
def test_captured_steps_never_need_values_of_tensors(kind, monkeypatch):
    """Tensors without values stand for those of a GPU during a capture."""
    model = new_model(kind)
    batch = padded(data_of(model)[0], ROOM)
    step = TrainingStep(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {name: mode.from_tensor(tensor) for name, tensor in batch.items()}
        with pytest.raises(DataDependentOutputException):
            step(fake)  # checks of elements and charges
        for module in (prediction, tensornet, tensornet2):
            monkeypatch.setattr(module, "is_capturing", lambda _: True)
        assert step(fake).shape == ()


@pytest.mark.parametrize("kind", CONFIGS)
def test_models_in_a_capture_compute_the_same(kind, monkeypatch):
    model = new_model(kind)
    batch = padded(data_of(model)[2], ROOM)
    expected = loss_of(model, batch)
    for module in (prediction, tensornet, tensornet2):
        monkeypatch.setattr(module, "is_capturing", lambda _: True)
    assert_within(loss_of(model, batch).detach(), expected.detach(), 1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CONFIGS)
def test_one_graph_serves_all_batches(kind):
    losses, weights = [], []
    for captured in (True, False):
        model = new_model(kind)
        data = data_of(model)
        model.cuda()
        rate = 2**-10  # exact in float32, the dtype of rates in a graph
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
        step = TrainingStep(model, loss_of, optimizer, max_gradient_norm=0.5, capture=captured)
        batches = [padded(batch, ROOM) for batch in data] if captured else data
        found = [step({name: t.cuda() for name, t in batch.items()}) for batch in 2 * batches]
        assert len(step._graphs) == (1 if captured else 0)
        losses.append(torch.stack(found))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert_within(losses[0], losses[1], 1e-9)
    assert_within(weights[0], weights[1], 1e-9)
