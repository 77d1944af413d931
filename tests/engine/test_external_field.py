"""Charges in an external field, on the host."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from ase import Atoms

from mlff_triton import Engine
from mlff_triton.errors import InputError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.testing import assert_close, assert_within, random_cluster
from tests.support.charged import charged_model, crystal
from tests.support.device_steps import batch_of, model
from tests.support.external_fields import CurvedField

ORDERS = {"energy": 0, "atom_energies": 0, "charges": 0, "forces": 1, "virial": 1}
CHANGES = ({}, {"coulomb_cutoff": 3.5}, {"coulomb_cutoff": 5.0, "pme_error": 1e-4})


@cache
def engine(backend: str, dtype: str = "float64", **changes) -> Engine:
    return Engine(charged_model(**changes), "cpu", dtype, backend)


def systems_of(changes) -> list[Atoms]:
    if "pme_error" in changes:
        return [crystal()]
    return [random_cluster(5), Atoms("O"), random_cluster(3, seed=5)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_backends_agree_with_the_exact_module(changes, backend, dtype):
    systems = systems_of(changes)
    batch = batch_of(*systems, charge=[0, 1, -2][: len(systems)])
    ours, exact = (CurvedField(len(batch.numbers), "cpu") for _ in range(2))
    with torch.no_grad():
        found = engine(backend, dtype, **changes).evaluate_in_field(batch, ours)
    expected = engine("exact", **changes).evaluate_in_field(batch, exact)
    without = engine("exact", **changes).evaluate(batch)
    assert (expected.forces - without.forces).abs().max() > 0.1  # charges respond to positions
    for name, order in ORDERS.items():
        value, truth = getattr(found, name), getattr(expected, name)
        assert_close(value, truth, order, dtype, floor=1e-2 * order)
    assert_close(ours.charges[0], exact.charges[0], 0, dtype)
    assert found.tensors.keys() == expected.tensors.keys()


@pytest.mark.parametrize("backend", ["exact", "cpu", "torch"])
def test_forces_are_derivatives(backend):
    """The field itself does not depend on positions, so that all forces are those of charges."""
    atoms, step = random_cluster(5), 1e-4
    field = CurvedField(len(atoms), "cpu")
    forces = engine(backend).evaluate_in_field(batch_of(atoms), field).forces
    found = torch.zeros_like(forces)
    for k in range(len(atoms)):
        for d in range(3):
            energies = []
            for sign in (1, -1):
                moved = atoms.copy()
                moved.positions[k, d] += sign * step
                moved_batch = batch_of(moved)
                energies.append(engine(backend).evaluate_in_field(moved_batch, field).energy.item())
            found[k, d] = (energies[1] - energies[0]) / (2 * step)
    assert_within(forces, found, 1e-6)


@pytest.mark.parametrize("backend", ["exact", "cpu", "torch"])
def test_ensembles_are_means(backend):
    members = [charged_model(seed=seed) for seed in (0, 1)]
    batch = batch_of(random_cluster(5))
    fields = [CurvedField(5, "cpu") for _ in range(3)]
    found = Engine(Ensemble(members), "cpu", "float64", backend).evaluate_in_field(batch, fields[0])
    each = [
        Engine(member, "cpu", "float64", backend).evaluate_in_field(batch, field)
        for member, field in zip(members, fields[1:], strict=True)
    ]
    assert_close(found.forces, torch.stack([e.forces for e in each]).mean(0), 1)
    assert len(fields[0].charges) == 2  # one after the other, as each member has its own
    for charges, one in zip(fields[0].charges, fields[1:], strict=True):
        assert torch.equal(charges, one.charges[0])


@pytest.mark.parametrize("backend", ["exact", "cpu", "torch"])
def test_models_without_charges_are_refused(backend):
    batch = batch_of(random_cluster(3))
    message = "predicts no charges: take a TensorNet2"
    with pytest.raises(InputError, match=message) as refusal:
        Engine(model(), "cpu", "float64", backend).evaluate_in_field(batch, CurvedField(3, "cpu"))
    assert "\n" not in str(refusal.value)
