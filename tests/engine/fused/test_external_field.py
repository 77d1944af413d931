"""Charges in an external field, by kernels: results of steps that are captured or repeated."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from mlff_triton import Engine
from mlff_triton.errors import InputError
from mlff_triton.testing import assert_close, random_cluster
from tests.support.charged import charged_model, crystal
from tests.support.device_steps import batch_of
from tests.support.external_fields import CurvedField

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]

ORDERS = {"energy": 0, "atom_energies": 0, "charges": 0, "forces": 1, "virial": 1}


@cache
def model(**changes):
    return charged_model(hidden_channels=32, **changes)


def engines(device, graphs, dtype="float64", **changes):
    backend = "triton-graph" if graphs else "triton"
    return (
        Engine(model(**changes), device, dtype, backend),
        Engine(model(**changes), "cpu", "float64", "exact"),
    )


def assert_true(ours, truth, batch, field, exact_field, dtype="float64"):
    found = ours.evaluate_in_field(batch, field)
    expected = truth.evaluate_in_field(batch, exact_field)
    for name, order in ORDERS.items():
        value, exact = getattr(found, name), getattr(expected, name)
        assert_close(value, exact, order, dtype, floor=1e-2 * order)
    assert_close(field.charges[-1], exact_field.charges[-1], 0, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("changes", [{}, {"coulomb_cutoff": 4.0}], ids=str)
def test_agrees_with_the_exact_module(device, graphs, changes, dtype):
    batch = batch_of(crystal() if changes else random_cluster(7))
    fields = [CurvedField(len(batch.numbers), place) for place in (device, "cpu")]
    assert_true(*engines(device, graphs, dtype, **changes), batch, *fields, dtype)


def test_steps_follow_one_another(device, graphs):
    """Fields change between steps, atoms move beyond the list, and others come and go."""
    atoms = random_cluster(5)
    pair = engines(device, graphs)
    static, other = CurvedField(5, device), CurvedField(5, device, k=-0.4)
    single, exact = CurvedField(5, device, is_static=False), CurvedField(5, "cpu")
    for step, field in enumerate([static, static, other, static, single, static, single]):
        moved = atoms.copy()
        moved.positions += np.random.default_rng(step).uniform(-0.3, 0.3, moved.positions.shape)
        field.u += step
        exact.u.copy_(field.u)
        exact.k = field.k
        assert_true(*pair, batch_of(moved), field, exact)
        n_calls = len(field.charges)
        plain = [engine.evaluate(batch_of(moved)) for engine in pair]
        assert_close(plain[0].forces, plain[1].forces, 1, floor=1e-2)
        assert len(field.charges) == n_calls
    if graphs:  # a graph is captured for each change, and replayed otherwise
        assert static.n_prepared < single.n_prepared + 12


def test_repeated_steps_count_once(device, graphs):
    """The list is stale after a jump, which the step itself finds out."""
    ours, truth = engines(device, graphs)
    field, exact = CurvedField(4, device, is_static=False), CurvedField(4, "cpu")
    atoms = random_cluster(4)
    for shift in (0.0, 0.0, 3.0):
        moved = atoms.copy()
        moved.positions[0] += shift
        assert_true(ours, truth, batch_of(moved), field, exact)
    assert len(field.charges) == 3
    assert field.n_prepared == 4
    assert torch.isfinite(field.charges[-1]).all()


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_errors_name_atoms_after_other_steps(device, graphs):
    """Steps with and without a field have graphs of their own, each with its own status."""
    ours, _ = engines(device, graphs)
    atoms, field = random_cluster(4), CurvedField(4, device)
    ours.evaluate_in_field(batch_of(atoms), field)
    ours.evaluate(batch_of(atoms))
    lost = batch_of(atoms)
    lost.positions[2, 1] = np.nan
    with pytest.raises(InputError, match="the position of atom 2 is NaN") as refusal:
        ours.evaluate_in_field(lost, field)
    assert "\n" not in str(refusal.value)
    assert len(field.charges) == 1
