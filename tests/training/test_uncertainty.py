"""Uncertainties that training adds to a model: their definition, calibration and report."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from mlff_triton import Engine, load_model
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing import assert_close, random_cluster
from mlff_triton.training.batches import GraphData
from mlff_triton.training.evaluation import evaluate
from mlff_triton.training.labels import Labels
from mlff_triton.training.run import Base, train_files
from mlff_triton.training.settings import Architecture, Data, Settings
from mlff_triton.training.sources import read_frames
from mlff_triton.training.uncertainty import (
    AS_LIKELY,
    BAD,
    PRIORS,
    Reliability,
    learn_and_judge,
    learn_uncertainty,
    lengths_of,
    predicted_errors,
)
from tests.support.charged import charged_model
from tests.support.labeled import labeled
from tests.support.tensornets import model_of

BEGIN = Architecture(channels=8, layers=1, rbf=6, cutoff=4.0)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def graphs_of(*structures: Atoms) -> GraphData:
    ase.io.write("some.xyz", structures, format="extxyz")
    frames = read_frames(["some.xyz"], Labels(), skip_bad=False, say=lambda _: None)
    return GraphData(frames, 4.0)


@pytest.fixture
def data() -> GraphData:
    return graphs_of(*labeled(20), *labeled(8, periodic=True))


@pytest.fixture
def model() -> TensorNet:
    torch.manual_seed(0)
    config = BEGIN.config((29, 47), uses_charge=False)
    return TensorNet(config).double().requires_grad_(False).eval()


TRAIN, VALID = torch.arange(0, 28, 2), torch.arange(1, 28, 2)


def hidden_of(model: TensorNet, data: GraphData, chosen: torch.Tensor) -> np.ndarray:
    """Return what the last linear map multiplies, one structure at a time."""
    seen = []
    last = model.readout.head.linear2
    handle = last.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    for k in chosen:
        evaluate(model, data, k[None])
    handle.remove()
    return torch.cat(seen).numpy()


def test_it_is_the_laplace_approximation_with_the_most_likely_prior(model, data):
    errors = evaluate(model, data, VALID)
    assert learn_uncertainty(model, data, TRAIN, VALID, errors)
    h, other = hidden_of(model, data, TRAIN), hidden_of(model, data, VALID)
    total, squares = h.T @ h, np.square(errors.forces).sum(1)
    scale = np.trace(total) / len(total)

    def variances(prior: float) -> np.ndarray:
        covariance = np.linalg.inv(total + prior * scale * np.eye(len(total)))
        return np.einsum("ni,ij,nj->n", other, covariance, other)

    def likelihood(prior: float) -> float:
        v = variances(prior)
        v *= np.mean(squares / v) / 3
        return float((-1.5 * np.log(2 * np.pi * v) - squares / (2 * v)).sum())

    highest = max(map(likelihood, PRIORS))
    best = max(p for p in PRIORS if likelihood(p) >= highest - AS_LIKELY * len(other))
    expected = np.sqrt(variances(best))
    expected *= np.sqrt(squares).mean() / expected.mean()
    found = predicted_errors(model, data, VALID)
    assert_close(found, expected, 1)
    assert_close(found.mean(), lengths_of(errors).mean(), 0)


def test_results_do_not_depend_on_batches(model, data, monkeypatch):
    errors = evaluate(model, data, VALID)
    learn_uncertainty(model, data, TRAIN, VALID, errors)
    weight, limit = model.readout.uncertainty.clone(), model.uncertainty_limit
    monkeypatch.setattr("mlff_triton.training.evaluation.most_edges", lambda _: 40)
    monkeypatch.setattr("mlff_triton.training.evaluation.pads", lambda _: True)  # as on a GPU
    learn_uncertainty(model, data, TRAIN, VALID, errors)
    assert_close(model.readout.uncertainty.T @ model.readout.uncertainty, weight.T @ weight, 1)
    assert model.uncertainty_limit == pytest.approx(limit)


def test_errors_without_a_scale_leave_no_earlier_uncertainty(model, data):
    errors = evaluate(model, data, VALID)
    assert learn_uncertainty(model, data, TRAIN, VALID, errors)
    none = dataclasses.replace(errors, forces=np.zeros_like(errors.forces))
    assert not learn_uncertainty(model, data, TRAIN, VALID, none)
    assert not model.has_uncertainty
    assert model.uncertainty_limit is None


@pytest.mark.gpu
def test_a_gpu_learns_the_same(model, data):
    errors = evaluate(model, data, VALID)
    other = copy.deepcopy(model).cuda()
    there = GraphData(data.frames, model.cutoff, torch.device("cuda"))
    for each, graphs in ((model, data), (other, there)):
        assert learn_uncertainty(each, graphs, TRAIN, VALID, errors)
    assert other.readout.uncertainty.is_cuda
    squares = [m.readout.uncertainty.T @ m.readout.uncertainty for m in (model, other)]
    assert_close(squares[1].cpu(), squares[0], 1)
    assert other.uncertainty_limit == pytest.approx(model.uncertainty_limit)


OTHERS = {
    "gated": lambda: model_of(head="gated", cutoff_upper=4.0),
    "TensorNet2": lambda: charged_model(coulomb_cutoff=4.0, head_layers=1),
    "TensorNet2, no Coulomb energy": lambda: charged_model(coulomb=False, cutoff_upper=4.0),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_heads_and_architectures_learn_theirs(kind):
    other = OTHERS[kind]()
    rng = np.random.default_rng(0)
    structures = []
    for k in range(28):
        atoms = random_cluster(4 + k % 3, seed=k)
        forces = rng.normal(size=(len(atoms), 3))
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=forces)
        structures.append(atoms)
    data = graphs_of(*structures)
    errors = evaluate(other, data, VALID)
    assert learn_uncertainty(other, data, TRAIN, VALID, errors)
    last = other.readout.head.last_channels
    assert other.readout.uncertainty.shape == (last, last)
    found = predicted_errors(other, data, VALID)
    assert_close(found.mean(), lengths_of(errors).mean(), 0)
    first = data.frames.select(VALID[:1].numpy())
    again = Engine(other, "cpu", "float64").compute(first.numbers, first.positions).uncertainty
    assert_close(again, found[: len(again)], 0)


def test_the_test_set_is_judged_if_there_is_one(model, data):
    errors = {name: evaluate(model, data, VALID) for name in ("valid",)}
    judged = learn_and_judge(model, data, (TRAIN, VALID, VALID[:0]), errors)
    assert judged.part == "valid"
    test = torch.arange(4)
    errors["test"] = evaluate(model, data, test)
    judged = learn_and_judge(model, data, (TRAIN, VALID, test), errors)
    assert judged.part == "test"
    assert judged.limit == model.uncertainty_limit
    assert_close(judged.reliability.actual, lengths_of(errors["test"]), 0)
    assert_close(judged.reliability.predicted, predicted_errors(model, data, test), 0)


@pytest.mark.parametrize("n_test", [0, 4])
def test_each_structure_passes_through_the_network_once(model, data, n_test):
    test = torch.arange(n_test)
    errors = {"valid": evaluate(model, data, VALID)}
    if n_test:
        errors["test"] = evaluate(model, data, test)
    seen = []
    model.readout.register_forward_hook(lambda _, __, found: seen.append(len(found[1])))
    learn_and_judge(model, data, (TRAIN, VALID, test), errors)
    parts = [TRAIN, VALID, test] if n_test else [TRAIN, VALID]
    assert seen == [data.n_atoms(part) for part in parts]


def test_structures_are_flagged_by_their_largest_value():
    start = np.arange(0, 63, 3)  # 20 structures of three atoms
    predicted, actual = np.zeros((20, 3)), np.zeros((20, 3))
    predicted[:, 1] = np.arange(20)
    actual[10:, 2] = 2 * BAD
    found = Reliability(predicted.ravel(), actual.ravel(), start)
    limit = found.limit()
    assert 8 <= limit < 9  # one of the ten good ones is above
    assert found.flagged(limit) == ((10, 10), (1, 10))
    assert found.flagged(15.0) == ((4, 10), (0, 10))
    all_bad = Reliability(predicted.ravel(), actual.ravel() + 1, start)
    assert all_bad.flagged(all_bad.limit()) == ((2, 20), (0, 0))


def test_deciles_hold_all_atoms_in_order():
    predicted = np.random.default_rng(0).uniform(size=37)
    groups = Reliability(predicted, 2 * predicted, np.array([0, 37])).deciles()
    assert len(groups) == 10
    joined = np.concatenate([some for some, _ in groups])
    assert np.array_equal(joined, np.sort(predicted))
    for some, actual in groups:
        assert np.array_equal(actual, 2 * some)
    few = Reliability(predicted[:3], predicted[:3], np.array([0, 3])).deciles()
    assert [len(some) for some, _ in few] == [1, 1, 1]


def train(out: str = "out", begin=BEGIN, **options):
    data = Data(("data.xyz",), valid=6, test=6)
    return train_files(data, Path(out), begin, Settings(epochs=2, batch=4), device="cpu", **options)


def test_models_of_training_know_their_uncertainty():
    structures = labeled(30)
    ase.io.write("data.xyz", structures, format="extxyz")
    result = train()
    model = load_model("out/model.safetensors")
    assert model.has_uncertainty
    engine = Engine(model, "cpu", "float64")
    errors = result.errors["valid"]
    named = {f"data.xyz, frame {k}": atoms for k, atoms in enumerate(structures)}
    found = [
        engine.compute(named[name].numbers, named[name].positions).uncertainty
        for name in errors.frames.name
    ]
    assert_close(torch.cat(found).mean(), lengths_of(errors).mean(), 1, torch.float32)
    report = Path("out/report.md").read_text()
    assert "## Uncertainty, test" in report
    assert f"The limit is {1000 * model.uncertainty_limit:.4g} meV/Å: 10% of" in report
    assert "| group | atoms | predicted error, meV/Å | error, meV/Å |" in report

    tuned = train("tuned", Base("out/model.safetensors"))
    assert tuned.errors
    assert load_model("tuned/model.safetensors").has_uncertainty


def test_lone_atoms_teach_nothing():
    atoms = []
    for k in range(20):
        atom = Atoms("Cu" if k % 2 else "Ag")
        atom.calc = SinglePointCalculator(atom, energy=float(k % 2), forces=np.zeros((1, 3)))
        atoms.append(atom)
    ase.io.write("data.xyz", atoms, format="extxyz")
    train()
    assert not load_model("out/model.safetensors").has_uncertainty
    assert "The model does not know its errors" in Path("out/report.md").read_text()
