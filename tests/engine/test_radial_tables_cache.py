"""Knots of radial tables in the cache folder, and the work to place them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mlff_triton import load_model
from mlff_triton._common import cache
from mlff_triton.engine import radial_tables
from mlff_triton.engine.radial_tables import TOLERANCES, RadialTables, tabulate
from tests.engine.test_radial_tables import LOOSE, Kinked, model_of


class Counter:
    """Evaluates radial networks and counts the distances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.distances = 0
        self._evaluate = radial_tables.evaluate
        monkeypatch.setattr(radial_tables, "evaluate", self)

    def __call__(self, model, distance):
        self.distances += len(distance)
        return self._evaluate(model, distance)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path))
    return tmp_path / "knots"


@pytest.fixture
def counter(monkeypatch) -> Counter:
    return Counter(monkeypatch)


def assert_same_bits(one: RadialTables, other: RadialTables) -> None:
    assert one.errors == other.errors
    for a, b in zip(tensors_of(one), tensors_of(other), strict=True):
        assert torch.equal(a, b)


def tensors_of(tables: RadialTables) -> list[torch.Tensor]:
    own = [tables.embedding_self, *tables.layer_self]
    return [*tables.knots, tables.embedding, *tables.layers, *own]


def test_tables_have_the_same_bits_with_and_without_the_cache(counter, monkeypatch, tmp_path):
    model = model_of("expnorm")
    first = tabulate(model, LOOSE)
    placed = counter.distances
    again = tabulate(model, LOOSE)
    knots = len(first.knots.positions)
    assert counter.distances - placed == knots
    assert placed > 4 * knots
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "elsewhere"))
    fresh = tabulate(model, LOOSE)
    assert_same_bits(first, again)
    assert_same_bits(first, fresh)


def test_the_number_of_threads_changes_no_bit(tmp_path, monkeypatch):
    before = torch.get_num_threads()
    model = model_of("gauss")
    tables = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            monkeypatch.setenv(cache.FOLDER, str(tmp_path / str(threads)))
            tables.append(tabulate(model, LOOSE))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert_same_bits(*tables)


def test_damaged_files_are_replaced(folder, counter):
    model = model_of("expnorm")
    first = tabulate(model, LOOSE)
    placed = counter.distances
    (file,) = folder.iterdir()
    stored = file.read_bytes()
    file.write_bytes(stored[:-8])
    assert_same_bits(tabulate(model, LOOSE), first)
    assert counter.distances == 2 * placed
    assert file.read_bytes() == stored


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    model = model_of("expnorm")
    first = tabulate(model, LOOSE)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(cache.FOLDER, str(blocked))
    assert_same_bits(tabulate(model, LOOSE), first)


def test_models_and_tolerances_have_their_own_knots(folder):
    model = model_of("expnorm")
    tabulate(model, LOOSE)
    tabulate(model, (LOOSE[0], 2 * LOOSE[1]))
    tabulate(model_of("expnorm, no self-loops"), LOOSE)
    with torch.no_grad():
        model.layers[1].radial[2].bias[0] += 1e-15
    tabulate(model, LOOSE)
    assert len(list(folder.iterdir())) == 4
    tabulate(model, LOOSE)
    assert len(list(folder.iterdir())) == 4


def test_another_basis_has_its_own_knots():
    model = model_of("expnorm")
    tabulate(model, LOOSE)
    model.basis = Kinked()
    with pytest.raises(radial_tables.UnsupportedModelError):
        tabulate(model, LOOSE)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 9_500), (torch.float64, 95_000)], ids=str
)
def test_placing_knots_takes_few_evaluations(dtype, most, counter):
    """Five per interval to measure the errors, one per knot, and a thousand samples."""
    tables = tabulate(load_model("tensornet-gfn2").double(), TOLERANCES[dtype])
    assert counter.distances < most
    assert counter.distances < 6.2 * len(tables.knots.positions) + 1100
