"""Bench ``docking`` with small models and complexes."""

from __future__ import annotations

import warnings

import pytest
import torch

from benchmarks.lab.docking_table import docking_table
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import Results, read_rows
from mlff_triton._common.timing import environment
from tests.support import kernel_fixtures

assert kernel_fixtures  # which chooses Triton's interpreter, before torch_geometric imports Triton

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TorchScript, which e3nn compiles when it is imported
    pytest.importorskip("e3nn", reason="e3nn is not installed")
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    from benchmarks.bio import docking
    from benchmarks.bio import docking_complexes as inputs
    from mlff_triton.bio.docking import sampler
    from tests.bio.models.diffdock import neighbors, support
    from tests.bio.models.diffdock.conftest import quick_products

pytestmark = pytest.mark.usefixtures(quick_products.__name__)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    sizes = {"ns": 4, "nv": 2, "num_conv_layers": 2, "dynamic_max_cross": False}
    for name, value in (("ATOMS", 9), ("RESIDUES", 12), ("NEIGHBORS", 3), ("SIZES", sizes)):
        monkeypatch.setattr(inputs, name, value)
    for name, value in (("SAMPLES", 3), ("SHARED", 2), ("STEPS", 2), ("POSES", 2)):
        monkeypatch.setattr(docking, name, value)
    monkeypatch.setattr(docking, "clean_up", lambda _: None)  # which takes most of the time
    for name in ("radius", "radius_graph"):
        monkeypatch.setattr(support.models, name, getattr(support.models, name))
    docking.truth.cache_clear()
    docking.true_poses.cache_clear()
    device = torch.device("cpu")
    made = Lab(device, environment(device), Results(tmp_path))
    made.budget.sampling = 0.0
    yield made
    docking.truth.cache_clear()
    docking.true_poses.cache_clear()


@pytest.mark.parametrize("case", ["score-v1-0.7", "layer-v1", "screen-L-64"])
def test_cases(lab, monkeypatch, tmp_path, case):
    if case.startswith("screen"):
        monkeypatch.setitem(docking.CASES, case, docking.Screen("CGModel", 3))
    docking.run_docking(lab, [case], [docking.OURS, docking.REFERENCE])
    rows = read_rows(tmp_path / "docking.csv")
    assert [(row.case, row.impl, row.gate) for row in rows] == [
        (case, "accelerated", "pass"),
        (case, "reference", "pass"),
    ]
    assert f"| {case} |" in docking_table(tmp_path)
    assert all(row.ms_p50 and row.error < 1e-5 for row in rows)


def test_wrong_results_have_no_time(lab, monkeypatch, tmp_path):
    monkeypatch.setattr(docking, "LIMIT", -1.0)
    docking.run_docking(lab, ["layer-v1"], [docking.OURS])
    (row,) = read_rows(tmp_path / "docking.csv")
    assert (row.gate, row.ms_p50) == ("fail", None)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_poses_by_wrong_scores_have_no_time(lab, monkeypatch, tmp_path, kind):
    """Translations, rotations or torsions of one ligand that are off by a tenth are noticed."""
    case = "screen-v1-64"
    monkeypatch.setitem(docking.CASES, case, docking.Screen("CGOldModel", 2))
    docking.true_poses("CGOldModel", lab.device)

    def wrong(scores, layout):
        owners = layout.owners if kind < 2 else layout.bond_owners
        factors = 1 + 0.1 * (owners == 1).float()
        scores = repaired(scores, layout)
        scores[kind] = (scores[kind].T * factors).T
        return scores

    repaired = sampler.repaired
    monkeypatch.setattr(sampler, "repaired", wrong)
    docking.run_docking(lab, [case], [docking.OURS])
    (row,) = read_rows(tmp_path / "docking.csv")
    assert (row.gate, row.ms_p50) == ("fail", None)


def test_neighbors_are_those_of_each_complex():
    rng = torch.Generator().manual_seed(0)
    residues, atoms = (4 * torch.randn(3 * n, 3, generator=rng) for n in (8, 5))
    batches = [torch.arange(3).repeat_interleave(n) for n in (8, 5)]
    for most in (2, 100):
        found = inputs._radius(residues, atoms, 5.0, *batches, max_num_neighbors=most)
        assert torch.equal(found, neighbors.radius(residues, atoms, 5.0, *batches, most))
        found = inputs._radius_graph(atoms, 5.0, batches[1], most)
        assert torch.equal(found, neighbors.radius_graph(atoms, 5.0, batches[1], most))
