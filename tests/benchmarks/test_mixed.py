"""Bench ``mixed`` with few molecules."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")

from benchmarks import __main__ as command
from benchmarks.calculators import mixed_systems
from benchmarks.lab.schema import read_rows
from benchmarks.systems.models import charged_model

NAMES = list(mixed_systems.IMPLEMENTATIONS)


@pytest.fixture
def small(monkeypatch):
    model = charged_model(32, repulsion=True, coulomb_cutoff=None)
    model.std.fill_(1.0)
    changes = {"CASES": {"6-in-192": 64}, "CUTOFF": 0.5, "PART": 2, "STEPS": 2}
    changes |= {"clean_up": lambda _: None, "model": lambda: model}
    for name, value in changes.items():
        monkeypatch.setattr(mixed_systems, name, value)
    truth = mixed_systems.truth
    truth.cache_clear()
    yield
    truth.cache_clear()


@pytest.mark.usefixtures("small")
def test_both_embeddings_pass_the_gate(lab, capfd):
    mixed_systems.run_mixed(lab, ["6-in-192"], NAMES)
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("mixed"))
    assert [(r.impl, r.gate, r.atoms) for r in rows] == [(name, "pass", 192) for name in NAMES]
    assert 0 < max(r.error for r in rows) < 1e-5


@pytest.mark.gpu
@pytest.mark.usefixtures("small")
def test_both_embeddings_pass_the_gate_on_gpus(gpu_lab, capfd):
    mixed_systems.run_mixed(gpu_lab, ["6-in-192"], NAMES)
    assert not capfd.readouterr().err
    assert {r.gate for r in read_rows(gpu_lab.results.path("mixed"))} == {"pass"}


@pytest.mark.usefixtures("small")
def test_wrong_forces_get_no_time(lab, monkeypatch):
    right = mixed_systems.truth(64, "ml-charges")
    monkeypatch.setattr(mixed_systems, "truth", lambda *_: np.multiply(right, 1.001))
    mixed_systems.run_mixed(lab, ["6-in-192"], ["ml-charges"])
    (row,) = read_rows(lab.results.path("mixed"))
    assert (row.gate, row.ms_p50) == ("fail", None)


def test_cases_and_implementations_are_known_to_the_command():
    options = command.parse(["mixed", "--cases", "48-in-3993", "--only", "ml-charges"])
    given = mixed_systems.BENCH, mixed_systems.CASES, mixed_systems.IMPLEMENTATIONS
    assert command.select(options) == ([], [], [])
    assert command._named(options, *given) == (["48-in-3993"], ["ml-charges"])
