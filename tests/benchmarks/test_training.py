"""The benchmark of training, at a tiny size on a CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks.lab.lab import Budget, Lab
from benchmarks.lab.schema import Results, read_rows
from benchmarks.systems.models import charged_model, random_model
from benchmarks.systems.systems import conformers
from benchmarks.training import cases, runner
from mlff_triton._common.timing import environment
from mlff_triton.model.tensornet2 import with_coulomb
from tests.support.benchmark_rows import CPU
from tests.support.torchmd_net import import_torchmdnet

MODELS = {
    "tensornet": partial(random_model, 8),
    "tensornet2": lambda: with_coulomb(charged_model(8), coulomb_cutoff=4.0),
}


@pytest.fixture
def lab(tmp_path):
    import_torchmdnet()
    return Lab(CPU, environment(CPU), Results(tmp_path), Budget(sampling=0.01))


@pytest.fixture(params=MODELS)
def case(request, monkeypatch):
    tiny = cases.Case("tiny", MODELS[request.param], partial(conformers, "aspirin", 1))
    monkeypatch.setitem(cases.CASES, "tiny", tiny)
    return tiny


def test_rows_of_ours_and_of_pytorch(lab, case, tmp_path):
    runner.run_training(lab, [case.name], ["ours-eager", "exact", "torch"])
    rows = read_rows(tmp_path / "training.csv")
    assert [row.gate for row in rows] == 3 * ["pass"]
    assert all(row.error < 1e-5 for row in rows)
    assert {row.atoms for row in rows} == {21}


def test_wrong_gradients_get_no_times(lab, case, tmp_path, monkeypatch):
    exact = runner.true_gradients

    def wrong(*args, **options):
        return [1.1 * gradient for gradient in exact(*args, **options)]

    monkeypatch.setattr(runner, "true_gradients", wrong)
    runner.run_training(lab, [case.name], ["torch"])
    (row,) = read_rows(tmp_path / "training.csv")
    assert row.gate == "fail"
    assert row.ms_p50 is None
    assert row.error > 0.01


def test_our_module_has_the_loss_of_theirs(case):
    import_torchmdnet()
    batch = cases.batches(case, CPU)[0]
    ours = cases.exact_loss(case, CPU)(case.model(), batch)
    theirs = cases.loss_of(cases.build(case, warp=False, static_shapes=False), batch)
    torch.testing.assert_close(ours.detach().float(), theirs.detach())


def test_batches_differ_in_positions_and_labels(case):
    first, second = cases.batches(case, CPU)[:2]
    assert not torch.equal(first["pos"], second["pos"])
    assert not torch.equal(first["forces"], second["forces"])
    assert first["pos"].shape == second["pos"].shape
