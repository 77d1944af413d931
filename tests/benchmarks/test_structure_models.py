"""Bench ``models`` with whole predictions of structures, in small sizes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.bio import boltz, models, openfold3, protenix, structures
from benchmarks.bio.structures import PER_TOKEN, Prediction
from benchmarks.lab.schema import Row, read_rows

STACK = "architecture.{}.no_blocks".format
SMALL = {
    protenix: protenix.Forward(
        6,
        cycles=2,
        steps=2,
        changes={
            "n_blocks": 1,
            "model.msa_module.n_blocks": 2,
            "model.confidence_head.n_blocks": 1,
            "model.diffusion_module.transformer.n_blocks": 2,
        },
    ),
    openfold3: openfold3.Forward(
        6,
        cycles=2,
        steps=2,
        changes={
            STACK("pairformer"): 1,
            STACK("msa.msa_module"): 2,
            STACK("template.template_pair_stack"): 1,
            STACK("diffusion_module.diffusion_transformer"): 2,
            STACK("heads.pairformer_embedding.pairformer"): 1,
        },
    ),
}
modules = pytest.mark.parametrize("module", SMALL, ids=lambda module: module.__name__)


@pytest.mark.filterwarnings("ignore")  # of the packages, on a CPU
@modules
def test_predictions_are_held_against_those_of_the_package(module, lab, monkeypatch, capfd):
    small = SMALL[module]
    name = small.package
    pytest.importorskip("ml_collections", reason="ml_collections is not installed")
    pytest.importorskip(name, reason=f"{name} is not installed")
    assert small.name == f"{name}-forward-6-2-cycles-2-steps"
    monkeypatch.setattr(module, "SEQUENCES", 16)
    monkeypatch.setitem(models.CASES, small.name, small)
    monkeypatch.setattr(
        "mlff_triton.bio.core.fast_forward.FastForward.backend", property(lambda _: "torch")
    )
    models.truth.cache_clear()
    runs = ["accelerated-fp32", "accelerated-autocast", "reference", "half", "half-graph"]
    models.run_models(lab, [small.name], runs)
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("models"))
    assert [row.impl for row in rows] == runs[:-1]
    assert {row.gate for row in rows} == {"pass"}


@modules
def test_atoms_of_features_belong_to_their_tokens(module):
    made = module.protein_features(5, 4)
    token = made["atom_to_token_idx" if module is protenix else "atom_to_token_index"]
    assert len(token) == len(made["ref_pos"]) == 40
    assert token.bincount().tolist() == [8] * 5


@dataclass(frozen=True)
class Walk(Prediction):
    """Random walk whose drift a network gives, as a sampler without a package."""

    cycles: int = 4
    package = "torch"

    def build(self, device: torch.device) -> nn.Module:
        """Build the network of drifts."""
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 3)).to(device)

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make positions to begin with."""
        return {"x": torch.randn(1, self.length * PER_TOKEN, 3, device=device)}

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Walk from the same positions with the same noise."""
        called.append(self)
        torch.manual_seed(0)
        x = inputs["x"] = torch.randn(inputs["x"].shape)
        for _ in range(self.cycles + self.steps):
            x = x + model(x).float() / 10 + torch.randn(x.shape) / 10
        return {"positions": x}


called: list[Walk] = []
LONG = Walk(6)


def scaled(factor: float, *, if_recycled: bool = False) -> models.Implementation:
    """Change the results of a network by a factor, everywhere or in calls with recycling only."""

    def prepare(workload: Any, model: nn.Module, inputs: dict[str, Any]) -> Callable[[], Any]:
        is_changed = workload.cycles > 1 or not if_recycled
        changed = copy.deepcopy(model)
        with torch.no_grad():
            changed[2].weight *= factor if is_changed else 1
        return models.eager(workload, changed, inputs)

    return models.Implementation(prepare)


@pytest.fixture
def walked(lab, monkeypatch) -> Callable[..., Row]:
    """Function that measures a walk with an implementation, and returns its row."""
    called.clear()
    models.truth.cache_clear()
    models.spread.cache_clear()

    def run(implementation: models.Implementation, workload: Walk = LONG) -> Row:
        monkeypatch.setitem(models.IMPLEMENTATIONS, "tested", implementation)
        monkeypatch.setitem(models.CASES, workload.name, workload)
        models.run_models(lab, [workload.name], ["tested"])
        (row,) = read_rows(lab.results.path("models"))
        return row

    return run


def test_long_predictions_are_held_against_cheaper_ones(walked):
    row = walked(models.IMPLEMENTATIONS["reference"])
    assert row.case == "torch-forward-6"
    assert (row.gate, row.error) == ("pass", 0)
    few, short = Walk(6, cycles=2, steps=20), Walk(6, cycles=1, steps=4)
    assert called == [few, short, LONG, few, few]  # truth, warm-up, timed, compared, and in half


@pytest.mark.parametrize(("factor", "gate"), [(1 + 1e-4, "pass"), (1.1, "fail")])
def test_limits_follow_from_the_model_as_shipped(walked, factor, gate):
    row = walked(scaled(factor))
    assert row.gate == gate
    assert (row.ms_p50 is None) == (gate == "fail")
    assert 0 < row.error < LONG.limit  # which alone would not tell them apart


def test_errors_are_relative_to_sizes():
    """Cosine similarities would call a structure right that is too large by a tenth."""
    positions = torch.randn(1, 4 * PER_TOKEN, 3)
    for error in (structures.distance_error, boltz_error):
        assert error(positions, positions) == pytest.approx(0, abs=1e-12)
        assert error(1.1 * positions, positions) == pytest.approx(0.005, rel=1e-3)
        assert math.isnan(error(torch.nan * positions, positions))


def boltz_error(actual: Tensor, expected: Tensor) -> float:
    pairs = {"z": torch.ones(2, 2)}
    return boltz.Forward(4).error(pairs | {"s": actual}, pairs | {"s": expected})


def test_recycling_is_compared(walked):
    assert walked(scaled(1.5, if_recycled=True)).gate == "fail"


def test_predictions_that_are_not_numbers_fail(walked):
    assert walked(scaled(torch.nan)).gate == "fail"


def test_half_precision_as_shipped_is_compared(walked):
    row = walked(models.Implementation(models.eager, is_half=True))
    assert row.gate == "pass"
    assert 0 < row.error < LONG.limit


def test_predictions_too_long_for_float32_are_unchecked(walked, monkeypatch):
    monkeypatch.setattr(structures, "CHECKED", 5)
    row = walked(scaled(2))
    assert row.gate == "unchecked"
    assert called == [LONG.short, LONG]


def test_a_model_that_fails_in_half_precision_has_the_usual_limit(walked, monkeypatch):
    monkeypatch.setattr(models, "spread", lambda *_: torch.nan)
    assert walked(scaled(1.1)).gate == "pass"
    assert walked(scaled(-20)).gate == "fail"


def test_published_sizes_are_checked():
    """Whole predictions of up to 1,024 residues, by default options."""
    for name, workload in models.CASES.items():
        if "forward" in name and workload.size <= 1024:
            assert workload.is_checked, name
            assert workload.cheaper.size == workload.size
    default = boltz.Forward(1024)
    assert default.cheaper == boltz.Forward(1024, recycles=1, steps=20)
    assert default.cheaper.cheaper == default.cheaper
    assert not boltz.Forward(3072).is_checked
