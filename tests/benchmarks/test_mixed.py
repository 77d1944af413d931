"""Bench ``mixed`` with few molecules."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")

from benchmarks import __main__ as command
from benchmarks.calculators import mixed_systems
from benchmarks.lab.schema import read_rows
from benchmarks.systems.models import charged_model

PEER = mixed_systems.PEER
NAMES = [name for name in mixed_systems.IMPLEMENTATIONS if name != PEER]


@pytest.fixture
def small(monkeypatch):
    def model(coulomb_cutoff=None):
        made = charged_model(32, repulsion=True, coulomb_cutoff=coulomb_cutoff)
        made.std.fill_(1.0)
        return made

    changes = {
        "CASES": {"6-in-192": 64},
        "CUTOFF": 0.5,
        "COULOMB_CUTOFF": 0.5,
        "PART": 2,
        "STEPS": 2,
    }
    changes |= {"clean_up": lambda _: None, "model": model}
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
@pytest.mark.filterwarnings("ignore")  # of TorchMD-NET and of PyTorch
def test_openmm_ml_gets_the_weights_and_the_part(lab, monkeypatch, capfd):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(mixed_systems, "PEER_TOLERANCE", 2e-3)  # forces of two molecules are weak
    mixed_systems.run_mixed(lab, ["6-in-192"], [PEER])
    assert not capfd.readouterr().err
    (row,) = read_rows(lab.results.path("mixed"))
    assert (row.impl, row.gate) == (PEER, "pass")


def test_openmm_ml_is_skipped_without_torchmd_net(lab, monkeypatch, capfd):
    monkeypatch.setattr(mixed_systems, "find_spec", lambda _: None)
    mixed_systems.run_mixed(lab, ["48-in-3993"], [PEER])
    assert "openmm-ml: skipped, torchmdnet is not installed" in capfd.readouterr().err


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
