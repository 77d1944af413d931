"""Padded batches against the same batches without padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mlff_triton.errors import InputError
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_within, random_cluster
from mlff_triton.torchmd_net.patch import accelerate
from mlff_triton.training.padding import pad_batch, pad_graph
from mlff_triton.training.step import TrainingStep
from tests.support.torchmd_net import (
    arguments,
    charged_arguments,
    import_torchmdnet,
    tensors_of,
    use_plain_operations,
)

MODELS = {
    "tensornet": lambda: arguments(torch.float64, static_shapes=True),
    "tensornet2": lambda: charged_arguments(torch.float64, static_shapes=True),
    "tensornet2, cutoff": lambda: charged_arguments(
        torch.float64, static_shapes=True, coulomb_cutoff=5.0
    ),
}


def labeled(sizes: tuple[int, ...]) -> dict[str, Tensor]:
    """Make a batch of charged molecules with random labels, float64."""
    images = [random_cluster(n, seed=n) for n in sizes]
    for k, atoms in enumerate(images):
        atoms.info["charge"] = k % 2
    made = tensors_of(images, torch.float64)
    energy = torch.randn(len(sizes), dtype=torch.float64)
    return made | {"energy": energy, "forces": torch.randn_like(made["pos"])}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Compute the mean squared error of energies and forces, of all that is not filler."""
    energy, forces = model(batch["z"], batch["pos"], batch["batch"], q=batch["q"])
    energy_error = (energy[:, 0] - batch["energy"]).square()
    force_error = (forces - batch["forces"]).square().mean(1)
    if "atom_mask" not in batch:
        return energy_error.mean() + force_error.mean()
    molecules, atoms = batch["molecule_mask"], batch["atom_mask"]
    energy_loss = (energy_error * molecules).sum() / molecules.sum()
    return energy_loss + (force_error * atoms).sum() / atoms.sum()


def new_model(kind: str) -> nn.Module:
    model: nn.Module = import_torchmdnet().models.model.create_model(MODELS[kind]())
    return model.train()


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    """Use TorchMD-NET's PyTorch operations, and float64 for its constants."""
    use_plain_operations(import_torchmdnet(), monkeypatch)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("spare", [(1, 1), (9, 1), (9, 4), (3, 3)])
@pytest.mark.parametrize("ours", [False, True], ids=["theirs", "ours"])
@pytest.mark.parametrize("kind", MODELS)
def test_padding_changes_neither_the_loss_nor_its_gradients(kind, ours, spare):
    model = new_model(kind)
    if ours:
        accelerate(model, "torch")
    batch = labeled((7, 1, 5))
    padded = pad_batch(batch, 13 + spare[0], 3 + spare[1])
    results = []
    for each in (batch, padded):
        model.zero_grad()
        loss = loss_of(model, {name: tensor.detach() for name, tensor in each.items()})
        loss.backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append([loss.detach(), *grads])
    for found, expected in zip(results[1], results[0], strict=True):
        assert_within(found, expected, 1e-10)


def test_filler_is_masked_and_isolated():
    batch = labeled((4, 2))
    before = {name: tensor.clone() for name, tensor in batch.items()}
    padded = pad_batch(batch, 11, 4)
    assert padded["batch"].tolist() == [0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3]
    assert padded["atom_mask"].tolist() == 6 * [True] + 5 * [False]
    assert padded["molecule_mask"].tolist() == [True, True, False, False]
    assert torch.pdist(padded["pos"][6:]).min() >= 100.0
    assert not padded["forces"][6:].any()
    assert not padded["energy"][2:].any()
    assert not padded["q"][2:].any()
    for name, tensor in before.items():
        assert torch.equal(batch[name], tensor), f"{name} was modified"
        assert torch.equal(padded[name][: len(tensor)], tensor)
        assert padded[name].dtype == tensor.dtype


def test_full_batches_gain_only_masks():
    batch = labeled((4, 2))
    padded = pad_batch(batch, 6, 2)
    assert all(torch.equal(padded[name], tensor) for name, tensor in batch.items())
    assert padded["atom_mask"].all()
    assert padded["molecule_mask"].all()


def test_other_tensors_per_molecule_are_named():
    batch = labeled((4, 2)) | {"weight": torch.ones(2)}
    with pytest.raises(InputError, match=r"'weight'\] has shape \[2\], but there are 6 atoms"):
        pad_batch(batch, 8, 3)
    padded = pad_batch(batch, 8, 3, per_molecule=("energy", "q", "weight"))
    assert padded["weight"].tolist() == [1.0, 1.0, 0.0]


def test_bad_input():
    batch = labeled((4, 2))
    with pytest.raises(InputError, match="6 atoms in 2 molecules do not fit in 5 atoms and 3"):
        pad_batch(batch, 5, 3)
    with pytest.raises(InputError, match="do not fit in 9 atoms and 1 molecules"):
        pad_batch(batch, 9, 1)
    with pytest.raises(InputError, match="3 filler atoms cannot make up 0 filler molecules"):
        pad_batch(batch, 9, 2)
    with pytest.raises(InputError, match="1 filler atoms cannot make up 2 filler molecules"):
        pad_batch(batch, 7, 4)
    with pytest.raises(InputError, match="no tensor 'pos'"):
        pad_batch({name: t for name, t in batch.items() if name != "pos"}, 9, 3)
    with pytest.raises(InputError, match="periodic box cannot be padded"):
        pad_batch(batch | {"box": torch.eye(3)}, 9, 3)
    with pytest.raises(InputError, match="'atom_mask' already: pad it only once"):
        pad_batch(pad_batch(batch, 9, 3), 12, 4)
    with pytest.raises(InputError, match=r"batch\['q'\] has shape \[\], but there are 2 molecules"):
        pad_batch(batch | {"q": torch.tensor(0)}, 9, 3)
    with pytest.raises(InputError, match="without atoms"):
        pad_batch({name: t[:0] for name, t in batch.items()}, 9, 3)


def listed(sizes: tuple[int, ...]) -> Graph:
    """List the neighbors of the molecules of `labeled`."""
    return concatenate([neighbor_list(random_cluster(n, seed=n).positions, 4.0) for n in sizes])


@pytest.mark.parametrize("spare", [(0, 0), (5, 0), (2, 2), (7, 62)])
def test_padded_lists_are_lists_of_filler_after_the_others(spare):
    graph = listed((7, 1, 5))
    padded = pad_graph(graph, 13 + spare[0], graph.n_edges + spare[1])
    assert (padded.n_atoms, padded.n_edges) == (13 + spare[0], graph.n_edges + spare[1])
    for name in ("senders", "shifts", "reverse", "receivers"):
        assert torch.equal(getattr(padded, name)[: graph.n_edges], getattr(graph, name))
    edges = torch.arange(padded.n_edges)
    assert torch.equal(padded.reverse[padded.reverse], edges)
    assert (padded.reverse != edges).all()
    assert torch.equal(padded.receivers[padded.reverse], padded.senders)
    filler = padded.receivers[graph.n_edges :], padded.senders[graph.n_edges :]
    assert all((end >= 13).all() for end in filler)
    assert (filler[0] != filler[1]).all()
    counts = padded.row_ptr.diff()[13 : 13 + spare[0] // 2 * 2]
    assert not len(counts) or counts.max() - counts.min() <= 1, "edges of filler are spread"


def test_bad_lists():
    graph = listed((4, 2))
    edges = graph.n_edges
    with pytest.raises(InputError, match=f"6 atoms with {edges} edges do not fit in 5 atoms and"):
        pad_graph(graph, 5, edges)
    with pytest.raises(InputError, match=f"do not fit in 8 atoms and {edges - 2} edges"):
        pad_graph(graph, 8, edges - 2)
    with pytest.raises(InputError, match="is odd, but edges come in pairs"):
        pad_graph(graph, 8, edges + 1)
    with pytest.raises(InputError, match="2 filler edges need two filler atoms, not 1"):
        pad_graph(graph, 7, edges + 2)


def test_lists_of_periodic_boxes():
    periodic = neighbor_list(torch.zeros(1, 3), 3.0, 2.0 * torch.eye(3), True)
    padded = pad_graph(periodic, 3, periodic.n_edges + 4)
    assert torch.equal(padded.shifts[: periodic.n_edges], periodic.shifts)
    assert not padded.shifts[periodic.n_edges :].any()
    assert torch.equal(padded.reverse[padded.reverse], torch.arange(padded.n_edges))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["tensornet", "tensornet2, cutoff"])
def test_one_graph_serves_molecules_of_different_sizes(kind):
    sizes = [(7, 1, 5), (6, 6), (3, 4, 5, 2), (9, 5)]
    data = [labeled(each) for each in sizes]
    losses, weights = [], []
    for padded in (True, False):
        torch.manual_seed(0)
        model = accelerate(new_model(kind).cuda(), "triton")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = TrainingStep(model, loss_of, optimizer, capture=padded)
        batches = [pad_batch(batch, 24, 6) for batch in data] if padded else data
        found = [step({name: t.cuda() for name, t in batch.items()}) for batch in batches]
        assert len(step._graphs) == (1 if padded else 0)
        losses.append(torch.stack(found))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert_within(losses[0], losses[1], 1e-9)
    assert_within(weights[0], weights[1], 1e-9)
