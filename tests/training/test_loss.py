"""The loss, averaged weights and the learning rate; filler and weights in batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from torch._subclasses.fake_tensor import FakeTensorMode

from mlff_triton import TensorNet, TensorNetConfig
from mlff_triton.errors import InputError
from mlff_triton.model import prediction, tensornet
from mlff_triton.testing import assert_within
from mlff_triton.training import references
from mlff_triton.training.averaging import WeightAverage
from mlff_triton.training.batches import GraphData, Size, shuffled
from mlff_triton.training.evaluation import evaluate
from mlff_triton.training.labels import Labels
from mlff_triton.training.loss import PENALTIES, Loss, errors_of
from mlff_triton.training.references import fit_references, fit_scale
from mlff_triton.training.schedule import learning_rate
from mlff_triton.training.sources import read_frames
from mlff_triton.training.step import TrainingStep
from tests.support.labeled import REFERENCES, labeled

CHOSEN = torch.tensor([3, 0, 6])


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = TensorNetConfig((29, 47), hidden_channels=8, num_layers=1, num_rbf=6, cutoff_upper=4.0)
    return TensorNet(config).double()


@pytest.fixture
def data(tmp_path):
    ase.io.write(tmp_path / "data.xyz", labeled(5))
    ase.io.write(tmp_path / "cells.xyz", labeled(4, periodic=True))
    frames = read_frames([tmp_path / "data.xyz", tmp_path / "cells.xyz"], Labels())
    return GraphData(frames, 4.0)


def loss_and_gradients(model, loss, batch):
    model.zero_grad()
    value = loss(model, batch)
    value.backward()
    return [value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("penalty", PENALTIES)
def test_filler_changes_nothing_even_in_cells(model, data, penalty):
    loss = Loss(penalty)
    plain = data.batch(CHOSEN)
    padded = data.batch(CHOSEN, data.size(len(CHOSEN)))
    assert len(padded["z"]) > len(plain["z"])
    results = [loss_and_gradients(model, loss, batch) for batch in (plain, padded)]
    for found, expected in zip(*results, strict=True):
        assert_within(found, expected, 1e-9)


def test_batches_that_are_too_large_get_the_next_size(data):
    sizes = [data.batch(CHOSEN, Size(2, 4, 2)), data.batch(CHOSEN, Size(2, 4, 2).grown())]
    assert len(sizes[0]["z"]) == len(sizes[1]["z"])


def test_the_loss_by_hand(model, data):
    batch = data.batch(CHOSEN)
    errors = errors_of(model, batch, create_graph=False)
    energy = (errors.energy / errors.n_atoms).abs().mean()
    forces = errors.forces.norm(dim=1).mean()
    virial = errors.virial[2].square().mean().sqrt() / errors.n_atoms[2]  # the only cell
    found = Loss("mae", 2.0, 3.0, 5.0).of(errors, batch)
    assert_within(found, 2 * energy + 3 * forces + 5 * virial, 1e-9)


def test_structures_without_weight_do_not_count(model, data):
    weight = np.ones(len(data.frames))
    weight[0] = 0
    weighted = GraphData(replace(data.frames, weight=weight), 4.0)
    loss = Loss()
    few = loss(model, data.batch(CHOSEN[[0, 2]]))
    assert_within(loss(model, weighted.batch(CHOSEN)).detach(), few.detach(), 1e-9)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_weights_act_as_repeated_structures(model, data, penalty):
    weights = np.ones(len(data.frames))
    weights[6] = 3.0  # a cell, with a stress
    weighted = GraphData(replace(data.frames, weight=weights), 4.0)
    repeated = data.batch(torch.cat([CHOSEN, CHOSEN[-1:], CHOSEN[-1:]]))
    for size in (None, data.size(3)):
        results = [
            loss_and_gradients(model, Loss(penalty), batch)
            for batch in (weighted.batch(CHOSEN, size), repeated)
        ]
        for found, expected in zip(*results, strict=True):
            assert_within(found, expected, 1e-9)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_captured_steps_never_need_values_of_tensors(model, data, penalty, monkeypatch):
    """Tensors without values stand for those of a GPU during a capture."""
    average = WeightAverage(model, 0.9)
    batch = data.batch(CHOSEN, data.size(len(CHOSEN)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainingStep(
        model, Loss(penalty), optimizer, max_gradient_norm=1.0, after_step=average.update
    )
    for module in (prediction, tensornet):
        monkeypatch.setattr(module, "is_capturing", lambda _: True)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {name: mode.from_tensor(tensor) for name, tensor in batch.items()}
        assert step(fake).shape == ()


def test_atoms_without_neighbors(model, tmp_path):
    """A single atom has an energy, and its batch has no edges."""
    atom = Atoms("Cu")
    results = {"energy": -100.0, "forces": np.zeros((1, 3))}
    atom.calc = SinglePointCalculator(atom, **results)
    ase.io.write(tmp_path / "atom.xyz", atom, format="extxyz")
    alone = GraphData(read_frames([tmp_path / "atom.xyz"], Labels()), 4.0)
    values = loss_and_gradients(model, Loss(), alone.batch(torch.tensor([0])))
    assert all(torch.isfinite(value).all() for value in values)
    fit_references(model, alone, torch.tensor([0]))
    assert abs(evaluate(model, alone, torch.tensor([0])).energy[0]) < 1e-6


def test_losses_that_are_refused():
    for arguments in (("l1",), ("mae", -1.0), ("mae", 0.0, 0.0)):
        with pytest.raises(InputError, match=r"use one of huber|must not be negative"):
            Loss(*arguments)


def test_every_structure_once_per_epoch_from_any_step():
    chosen = torch.arange(10, 17)
    stream = shuffled(chosen, 3, 0, 0)
    batches = [next(stream) for _ in range(6)]
    assert len(set(torch.cat(batches[:2]).tolist())) == 6
    resumed = shuffled(chosen, 3, 0, 3)
    assert torch.equal(next(resumed), batches[3])
    assert sorted(next(shuffled(chosen, 99, 0, 0)).tolist()) == chosen.tolist()


def test_references_of_the_elements_are_found(model, data):
    chosen = torch.arange(len(data.frames))
    fit_scale(model, data, chosen)
    assert np.allclose(model.references, list(REFERENCES.values()), atol=4)
    assert 0 < float(model.std) < 5
    before = model.references.clone()
    change = fit_references(model, data, chosen)
    assert np.allclose(model.references, before + torch.from_numpy(change))
    assert np.abs(fit_references(model, data, chosen)).max() < 1e-6


def test_fits_of_many_structures_have_enough_of_each_element(data, monkeypatch):
    monkeypatch.setattr(references, "MOST", 3)
    monkeypatch.setattr(references, "LEAST", 2)
    elements, chosen = tuple(REFERENCES), torch.arange(len(data.frames))
    some = references.sample(data, chosen, elements)
    assert 3 <= len(some) < len(chosen)
    assert (some.diff() > 0).all()
    counts = data.frames.counts(elements)
    found, known = (counts[k.numpy()] > 0 for k in (some, chosen))
    assert (found.sum(0) >= np.minimum(known.sum(0), 2)).all()
    assert torch.equal(references.sample(data, chosen[:3], elements), chosen[:3])


def test_elements_without_samples_keep_their_energies(data):
    torch.manual_seed(0)
    config = TensorNetConfig((1, 29, 47), hidden_channels=8, num_layers=1, num_rbf=6)
    model = TensorNet(config)
    model.references[0] = -13.6
    assert fit_references(model, data, torch.arange(9))[0] == 0
    assert float(model.references[0]) == -13.6


def test_errors_do_not_depend_on_batches(model, data):
    chosen = torch.tensor([1, 5, 2, 8])
    whole, parts = (evaluate(model, data, chosen, Loss(), most) for most in (10**9, 1))
    for name in ("energy", "forces", "stress", "loss"):
        assert np.allclose(getattr(whole, name), getattr(parts, name), equal_nan=True)
    assert whole.known_stress.shape == (2, 3, 3)
    assert set(whole.by_element()) <= {"Cu", "Ag"}
    assert sum(len(energy) for energy, _ in whole.by_group().values()) == 4


def test_averages_follow_the_weights(model):
    average = WeightAverage(model, 0.5)
    weight, averaged = (m.embedding.element.weight for m in (model, average.model))
    with torch.no_grad():
        weight += 1
    average.prepare(0)
    average.update()
    assert torch.allclose(weight - averaged, torch.full_like(weight, 0.1))
    average.prepare(10_000)
    average.update()
    assert torch.allclose(weight - averaged, torch.full_like(weight, 0.05))


def test_the_learning_rate_rises_and_falls():
    rates = [learning_rate(step, 100, 2.0, 10) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (k + 1) for k in range(10)])
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert rates[-1] < 0.01
