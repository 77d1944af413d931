from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.engine.gate import GateError, Truth, check_plausible
from benchmarks.engine.implementations import Outcome, exact
from benchmarks.systems import models, systems
from tests.support.benchmark_rows import CPU


@pytest.fixture
def judged(small_model) -> tuple[Truth, Outcome]:  # noqa: ARG001 - a fixture cannot be marked
    system, network = systems.random_box(21), models.model("random")
    prepared = exact(network, system, CPU)
    return Truth.of(network, system, CPU), prepared.read(prepared.step())


def test_the_gate_lets_float32_pass(judged):
    truth, outcome = judged
    assert 0 < truth.check(outcome, 1e-5, stress=True) < 1e-5


@pytest.mark.parametrize("field", ["energy", "forces", "virial"])
@pytest.mark.parametrize("fault", [1.001, float("nan")])
def test_the_gate_catches_wrong_results(judged, field, fault):
    truth, outcome = judged
    wrong = replace(outcome, **{field: getattr(outcome, field) * fault})
    with pytest.raises(GateError, match="off by"):
        truth.check(wrong, 1e-5, stress=True)


def test_the_gate_catches_a_missing_virial(judged):
    truth, outcome = judged
    with pytest.raises(GateError, match="no virial"):
        truth.check(replace(outcome, virial=None), 1e-5, stress=True)


def test_large_systems_must_be_plausible(judged):
    _, outcome = judged
    check_plausible(outcome)
    with pytest.raises(GateError, match="sum to"):
        check_plausible(replace(outcome, forces=outcome.forces + 0.1))
    with pytest.raises(GateError, match="NaN"):
        check_plausible(replace(outcome, energy=outcome.energy * torch.nan))
