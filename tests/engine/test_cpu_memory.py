"""Memory of steps in loops: results belong to the caller, and nothing is kept of other systems."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("numba")

from mlff_triton import Engine
from mlff_triton.kernels.common.cpu.arrays import as_array
from mlff_triton.testing import random_cluster
from tests.support.charged import charged_model
from tests.support.tensornets import model_of

SIZES = (5, 21, 21, 9, 30, 21)


@pytest.fixture(params=[model_of, charged_model], ids=["local", "charged"], scope="module")
def engine(request):
    return Engine(request.param(num_layers=2), "cpu", "float32", "cpu")


def compute(engine, k):
    """Return the results of one of some systems, several of which have the same size."""
    atoms = random_cluster(SIZES[k], seed=k)
    return engine.compute(atoms.numbers, atoms.positions)


def copies(prediction):
    return {name: x.clone() for name, x in prediction.tensors.items()}


def assert_same(found, expected):
    assert found.tensors.keys() == expected.keys()
    for name, x in found.tensors.items():
        assert x.equal(expected[name])


def test_results_stay_when_other_systems_are_computed(engine):
    found = [compute(engine, k) for k in range(len(SIZES))]
    expected = [copies(compute(engine, k)) for k in range(len(SIZES))]
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
        one.forces.zero_()  # nor does the engine read what it has returned
    for k, other in enumerate(expected):
        assert_same(compute(engine, k), other)


def test_threads_have_results_of_their_own(engine):
    expected = [copies(compute(engine, k)) for k in range(len(SIZES))]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            found = pool.map(lambda k: compute(engine, k), range(len(SIZES)))
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)


def test_nothing_is_kept_of_other_systems(engine):
    compute(engine, 0)
    gc.collect()
    before = len(as_array._kept)
    for n_atoms in range(5, 25):
        atoms = random_cluster(n_atoms)
        engine.compute(atoms.numbers, atoms.positions)
    compute(engine, 0)
    gc.collect()
    assert len(as_array._kept) <= before
