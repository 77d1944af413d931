"""Uncertainties of atoms: the engine on a CPU against the exact module, and models without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton.engine.engine import Engine
from mlff_triton.engine.parameters import Parameters
from mlff_triton.model.prediction import Ensemble, Prediction
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.support.charged import charged_model
from tests.support.tensornets import CPU, Batch, assert_same, model_of, uncertain

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

BACKENDS = ("cpu", "torch", "exact")
MODELS = {
    "scalar": lambda: uncertain(model_of()),
    "scalar, one row": lambda: uncertain(model_of(num_layers=1), 1),
    "scalar, more rows than hidden values": lambda: uncertain(model_of(num_layers=1), 40),
    "scalar, 7 channels": lambda: uncertain(model_of(hidden_channels=7)),
    "scalar, 64 channels": lambda: uncertain(model_of(hidden_channels=64, num_layers=1), 32),
    "gated": lambda: uncertain(model_of(head="gated", readout_activation=False), 3),
    "TensorNet2": lambda: uncertain(charged_model()),
    "TensorNet2, deep head": lambda: uncertain(charged_model(head_layers=2), 8),
    "TensorNet2, no Coulomb energy": lambda: uncertain(charged_model(coulomb=False)),
}
STRUCTURES = [random_cluster(9), Atoms("C"), random_cluster(5, seed=5)]


def compute(engine: Engine, *structures: Atoms) -> Prediction:
    return engine.compute(
        np.concatenate([atoms.numbers for atoms in structures]),
        np.concatenate([atoms.positions for atoms in structures]),
        batch=np.repeat(range(len(structures)), [len(atoms) for atoms in structures]),
    )


def by_definition(model: TensorNet, batch: Batch) -> torch.Tensor:
    """Return the norms of mapped hidden values, from what the last linear map is given."""
    seen = []
    head = model.readout.head
    hook = head.linear2.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    batch.predict(model)
    hook.remove()
    return (seen[0] @ model.readout.uncertainty.T).square().sum(1).sqrt()


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "gated"])
def test_the_module_follows_the_definition(kind):
    model = MODELS[kind]()
    batch = Batch(STRUCTURES, [0, 0, 0], model.cutoff)
    found = batch.predict(model).uncertainty
    assert not found.requires_grad
    assert_close(found, by_definition(model, batch), 0)
    assert found.max() > 1.1 * found.min()


@pytest.mark.parametrize("kind", ["scalar", "gated", "TensorNet2, deep head"])
def test_hidden_values_are_those_that_the_last_weights_multiply(kind):
    model = MODELS[kind]()
    head = model.readout.head
    last = head.values[-1] if kind == "gated" else head.linear2
    last.weight.requires_grad_()
    energies, hidden = head(torch.randn(6, model.config.hidden_channels).double())
    for energy, values in zip(energies, hidden, strict=True):
        slope = torch.autograd.grad(energy, last.weight, retain_graph=True)[0]
        assert_close(slope[0], values, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", MODELS)
def test_backends_agree_with_the_module(kind, backend, dtype):
    model = MODELS[kind]()
    engine = Engine(model, "cpu", dtype, backend)
    assert engine.has_uncertainty
    assert engine.uncertainty_limit == 0.5
    expected = Batch(STRUCTURES, [0, 0, 0], model.cutoff).predict(model)
    for _ in range(3):  # loops repeat what they have recorded
        found = compute(engine, *STRUCTURES)
        assert found.uncertainty.dtype == getattr(torch, dtype)
        assert_close(found.uncertainty, expected.uncertainty, 1, found.uncertainty.dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_order_and_company_of_atoms_do_not_matter(backend):
    engine = Engine(uncertain(model_of()), "cpu", "float64", backend)
    crystal = random_crystal(12, "triclinic")
    given = crystal.cell.array, crystal.pbc
    expected = engine.compute(crystal.numbers, crystal.positions, *given).uncertainty
    order = np.random.default_rng(0).permutation(len(crystal))
    found = engine.compute(crystal.numbers[order], crystal.positions[order], *given).uncertainty
    assert_close(found, expected[order], 0)
    alone = compute(engine, STRUCTURES[2]).uncertainty
    assert_close(compute(engine, *STRUCTURES).uncertainty[-5:], alone, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_models_without_uncertainty_predict_none(backend):
    engine = Engine(model_of(num_layers=1), "cpu", "float64", backend)
    assert not engine.has_uncertainty
    assert engine.uncertainty_limit is None
    assert compute(engine, STRUCTURES[0]).uncertainty is None


def test_energies_and_forces_do_not_depend_on_it():
    plain, known = (Engine(m, "cpu", "float32", "cpu") for m in (model_of(), MODELS["scalar"]()))
    found, expected = (compute(engine, *STRUCTURES) for engine in (known, plain))
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


def test_ensembles_have_the_mean_if_all_members_know_theirs():
    members = [uncertain(model_of(num_layers=n)) for n in (1, 2)]
    batch = Batch(STRUCTURES, [0, 0, 0])
    expected = torch.stack([batch.predict(member).uncertainty for member in members]).mean(0)
    both = Ensemble(members)
    assert both.has_uncertainty
    assert_close(batch.predict(both).uncertainty, expected, 0)
    for backend in BACKENDS:
        found = compute(Engine(both, "cpu", "float64", backend), *STRUCTURES)
        assert_close(found.uncertainty, expected, 0)
    mixed = Ensemble([members[0], model_of()])
    assert not mixed.has_uncertainty
    assert mixed.uncertainty_limit is None
    assert batch.predict(mixed).uncertainty is None
    assert compute(Engine(mixed, "cpu", "float64"), *STRUCTURES).uncertainty is None


@pytest.mark.parametrize("n_rows", [1, 8, 40])
def test_rows_are_padded_or_reduced_without_a_change(n_rows):
    model = uncertain(model_of(num_layers=1), n_rows)
    p = Parameters.of(model, CPU, torch.float64)
    assert p.deviations.weight.shape == (16, 16)
    batch = Batch(STRUCTURES, [0, 0, 0])
    assert_same(batch.step(p, torch.float64), batch.predict(model), torch.float64)


def test_training_does_not_change_it():
    model = uncertain(model_of(num_layers=1)).requires_grad_()
    names = [name for name, _ in model.named_parameters()]
    assert not any("uncertainty" in name for name in names)
    assert not Batch([STRUCTURES[0]], [0]).predict(model).uncertainty.requires_grad


def test_hash_of_weights_sees_it_but_that_of_the_network_does_not():
    plain, known = model_of(), uncertain(model_of())
    assert known.network_hash == plain.network_hash == plain.weights_hash
    assert known.weights_hash != plain.weights_hash
