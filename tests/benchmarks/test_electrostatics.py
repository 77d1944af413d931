"""Bench ``electrostatics`` with few charges."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.kernels import electrostatics
from benchmarks.lab import electrostatics_tables
from benchmarks.lab.schema import Results, read_rows
from tests.support.benchmark_rows import CPU, row

N_ATOMS = 300


@pytest.fixture
def small(monkeypatch):
    cases = {kind: (kind, N_ATOMS) for kind in electrostatics.KINDS}
    monkeypatch.setattr(electrostatics, "CASES", cases)
    monkeypatch.setattr(electrostatics, "clean_up", lambda _: None)  # which takes most of the time
    truth = electrostatics.truth
    truth.cache_clear()
    yield list(cases)
    truth.cache_clear()


def test_references_are_held_against_direct_sums(lab, small, capfd):
    electrostatics.run_electrostatics(lab, small, ["torch"])
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("electrostatics"))
    assert [(r.case, r.gate, r.atoms) for r in rows] == [(name, "pass", N_ATOMS) for name in small]
    errors = {r.case: r.error for r in rows}
    assert 1e-6 < errors["pme_energy"] < 1e-5
    assert 1e-6 < errors["pme_energy-order-6"] < 1e-5
    assert errors["ewald_pairs"] < 1e-6
    assert errors["mesh_ewald"] < 3e-6


def test_a_million_charges_are_checked_by_fewer(lab, small, monkeypatch, capfd):
    cases = electrostatics.CASES | {"large": ("pme_energy", 2 * N_ATOMS)}
    monkeypatch.setattr(electrostatics, "CASES", cases)
    monkeypatch.setattr(electrostatics, "STAND_INS", {"large": small[0]})
    electrostatics.run_electrostatics(lab, ["large"], ["torch"])
    assert "large torch: skipped, it needs more memory" in capfd.readouterr().err
    electrostatics.run_one(lab, "large", "torch", "torch")
    assert not capfd.readouterr().err
    (found,) = read_rows(lab.results.path("electrostatics"))
    assert (found.case, found.atoms, found.gate) == ("large", 2 * N_ATOMS, "pass")
    assert found.error == pytest.approx(electrostatics.error_of(small[0], "torch", CPU), rel=1e-3)


def test_each_large_case_has_a_smaller_one_of_its_kind():
    cases = electrostatics.CASES
    large = {name for name, (_, n) in cases.items() if n > electrostatics.SIZES[-1]}
    assert (
        large == {*electrostatics.STAND_INS} == {"pme_energy-1000000", "pme_energy-order-6-1000000"}
    )
    for name, smaller in electrostatics.STAND_INS.items():
        assert cases[smaller] == (cases[name][0], electrostatics.SIZES[-1])


@pytest.mark.gpu
def test_kernels_pass_the_gate(gpu_lab, small, capfd):
    electrostatics.run_electrostatics(gpu_lab, small, ["triton", "triton-graph"])
    assert not capfd.readouterr().err
    rows = read_rows(gpu_lab.results.path("electrostatics"))
    assert [(r.case, r.gate) for r in rows] == [(name, "pass") for name in small for _ in range(2)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("factor", [1.001, math.nan])
def test_wrong_results_of_ours_get_no_time(lab, monkeypatch, factor):
    right = electrostatics.energy_of("pme_energy", "torch")

    def wrong(*arguments):
        return factor * right(*arguments)

    expected = electrostatics.truth("pme_energy", CPU)
    monkeypatch.setattr(electrostatics, "truth", lambda *_: expected)
    monkeypatch.setattr(electrostatics, "energy_of", lambda *_: wrong)
    monkeypatch.setattr(electrostatics, "triton_obstacle", lambda _: None)
    electrostatics.run_electrostatics(lab, ["pme_energy"], ["triton"])
    (found,) = read_rows(lab.results.path("electrostatics"))
    assert (found.ms_p50, found.gate) == (None, "fail")


@pytest.mark.usefixtures("small")
def test_what_cannot_run_is_skipped_with_the_reason(lab, monkeypatch, capfd):
    monkeypatch.setattr(electrostatics, "find_spec", lambda _: None)
    electrostatics.run_electrostatics(
        lab, ["pme_energy", "ewald_pairs"], ["nvalchemi", "torch-graph"]
    )
    errors = capfd.readouterr().err
    assert "electrostatics pme_energy nvalchemi: skipped, nvalchemiops is not installed" in errors
    assert "electrostatics ewald_pairs torch-graph: skipped, no GPU" in errors
    assert "ewald_pairs nvalchemi" not in errors
    assert not read_rows(lab.results.path("electrostatics"))


def test_charges_are_neutral_and_as_dense_as_water():
    problem = electrostatics.build(300, 5, CPU)
    assert abs(float(problem.charges.sum())) < 1e-5
    volume = float(torch.linalg.det(problem.cell[0]))
    assert 300 / volume == pytest.approx(electrostatics.DENSITY)


@pytest.mark.usefixtures("small")
def test_cases_and_implementations_are_selected_by_name(tmp_path):
    options = ["--device", "cpu", "--sampling", "0.01", "--out", str(tmp_path)]
    selected = ["--cases", "mesh_ewald", "--only", "torch"]
    assert command.main(["electrostatics", *selected, *options]) == 0
    (found,) = read_rows(tmp_path / "electrostatics.csv")
    assert (found.case, found.impl) == ("mesh_ewald", "torch")


def test_sums_are_tabulated_with_their_best_peers(tmp_path):
    times = {"triton": 3.0, "triton-graph": 1.0, "torch-graph": 9.0, "nvalchemi": 4.0}
    Results(tmp_path).add(
        row(bench="electrostatics", case=case, impl=impl, ms=ms)
        for case in ("pme_energy-4096", "mesh_ewald-4096")
        for impl, ms in times.items()
    )
    (line,) = electrostatics_tables.electrostatics_table(tmp_path).splitlines()[2:3]
    assert line.startswith("| pme_energy-4096 | 9 | 4 | **1** | 4.0x |")
    assert "mesh_ewald" not in electrostatics_tables.electrostatics_table(tmp_path)


def test_couplings_are_compared_with_the_faster_route(tmp_path):
    times = {"mechanical": 4.0, "mechanical-python": 2.0, "ml-charges": 5.0, "openmm-ml": 6.0}
    Results(tmp_path).add(
        row(bench="mixed", case="48-in-3993", impl=impl, ms=ms) for impl, ms in times.items()
    )
    line = electrostatics_tables.mixed_table(tmp_path).splitlines()[2]
    assert "| 4 | 2 | 5 | 2.5x |" in line
    assert line.endswith("| 6 | 3.0x |")
