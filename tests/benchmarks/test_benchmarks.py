from __future__ import annotations

import csv
import itertools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from ase import Atoms
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks.bio import encoders as bio
from benchmarks.calculators import openmm_steps
from benchmarks.calculators.ase_steps import calculator
from benchmarks.engine import cases, fidelity, peers
from benchmarks.engine.cases import CASES, Case
from benchmarks.engine.gate import GateError, Truth, check_plausible
from benchmarks.engine.implementations import Implementation, Outcome, Prepared, exact
from benchmarks.kernels import operators, radial_messages
from benchmarks.kernels import run as ops
from benchmarks.kernels.operators import Operator
from benchmarks.lab import figures, runner
from benchmarks.lab.guards import at_most, quiet
from benchmarks.lab.runner import Budget, Lab
from benchmarks.lab.schema import (
    Results,
    Row,
    bytes_of,
    columns_of,
    kind_of,
    make_row,
    read_rows,
    with_bytes,
)
from benchmarks.systems import geometries, models, systems
from mlff_triton._common import timing
from mlff_triton._common.timing import Environment, Timing, measure
from mlff_triton.cli import bench as bench_command
from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.reference.attention import attention as reference_attention
from mlff_triton.model.irreps import scale
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.units import NM

CPU = torch.device("cpu")
WHERE = Environment("a GPU", "2.11", "3.6", "abc1234", "2026-01-02")
MOLECULES = {name: n_atoms for name, (_, n_atoms) in geometries.MD17.items()} | geometries.MD22
COLUMNS = (
    "bench,case,atoms,edges,impl,gpu,torch,triton,commit,date,"
    "ms_p20,ms_p50,ms_p80,peak_mib,error,gate"
)


@pytest.fixture
def small_model(monkeypatch) -> Iterator[None]:
    """Make the random model a small one."""
    monkeypatch.setitem(models.MODELS, "random", partial(models.random_model, 8))
    caches = (models.model, runner.truth, radial_messages._box, radial_messages._network)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture(autouse=True)
def _peers_as_they_were() -> Iterator[None]:
    """Rebuilding a peer selects operators for the whole process: undo that for other tests."""
    yield
    if "torchmdnet.models.tensornet" in sys.modules:
        peers.select_operators(warp=True)


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab(CPU, WHERE, Results(tmp_path), Budget(sampling=0.01))


def row(case: str = "21", impl: str = "engine", ms: float | None = 1.0, **changes) -> Row:
    times = None if ms is None else Timing(0.9 * ms, ms, 1.1 * ms, 512.0)
    made = make_row("step", case, impl, (int(changes.pop("atoms", 21)), 332), WHERE, times, 1e-7)
    return replace(made, **changes)


def energy_case(name: str = "21", **changes) -> Case:
    return replace(Case("step", name, partial(systems.random_box, 21)), **changes)


# The CSV


def test_columns_are_those_agreed(tmp_path):
    assert ",".join(columns_of(Row)) == COLUMNS
    Results(tmp_path).add([row()])
    assert (tmp_path / "step.csv").read_text().splitlines()[0] == COLUMNS


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = [row(), row(impl="torch", ms=None, error=None), row(case="128", peak_mib=None)]
    Results(tmp_path).add(rows)
    for read, written in zip(read_rows(tmp_path / "step.csv"), rows, strict=True):
        assert read.key == written.key
        assert read.gate == ("fail" if written.ms_p50 is None else "pass")
        assert read.ms_p50 == written.ms_p50
        assert read.peak_mib == written.peak_mib


def test_a_row_of_a_later_run_replaces_the_older_one(tmp_path):
    Results(tmp_path).add([row(ms=2.0), row(impl="torch", ms=9.0)])
    Results(tmp_path).add([row(ms=None)])
    found = {r.impl: r for r in read_rows(tmp_path / "step.csv")}
    assert found["torch"].ms_p50 == 9.0
    assert found["engine"].ms_p50 is None
    assert found["engine"].gate == "fail"


def test_a_foreign_file_is_refused_and_kept(tmp_path):
    (tmp_path / "step.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="columns"):
        Results(tmp_path).add([row()])
    assert (tmp_path / "step.csv").read_text() == "a,b\n1,2\n"


def test_a_failed_write_leaves_the_file_whole(tmp_path, monkeypatch):
    results = Results(tmp_path)
    results.add([row()])
    before = (tmp_path / "step.csv").read_text()

    def full_disk(*_args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        results.add([row(case="128")])
    assert (tmp_path / "step.csv").read_text() == before


def test_bandwidth_cases_carry_their_bytes():
    assert bytes_of(with_bytes("compose-1024", 4096)) == 4096
    with pytest.raises(InputError, match="bytes"):
        bytes_of("compose-1024")


# Timing


def test_quantiles(monkeypatch):
    durations = itertools.chain([1.0], np.linspace(0.001, 0.101, 101))
    monkeypatch.setattr(timing, "_wall_time", lambda *_args: next(durations))
    found = measure(lambda: None, "cpu", repeats=(101, 101))
    assert (found.p20, found.p50, found.p80) == pytest.approx((21, 51, 81))
    assert found.peak_mib is None


def test_warm_up_is_not_counted():
    calls = itertools.count()
    measure(lambda: next(calls), "cpu", warm_up=4, seconds=0.0, repeats=(5, 9))
    assert next(calls) == 4 + 1 + 5


def test_commit_without_git_comes_from_the_environment(monkeypatch):
    monkeypatch.setattr(timing.shutil, "which", lambda _name: None)
    monkeypatch.setenv("MLFF_TRITON_COMMIT", "fedcba9")
    assert timing.environment("cpu").commit == "fedcba9"


# Cases and structures


@pytest.mark.parametrize(
    ("name", "n_atoms"),
    [(n, v[1]) for n, v in geometries.MD17.items()] + [*geometries.MD22.items()],
)
def test_molecules_are_complete_and_do_not_overlap(name, n_atoms):
    atoms = geometries.load()[name]
    assert len(atoms) == n_atoms
    distances = atoms.get_all_distances()[np.triu_indices(n_atoms, 1)]
    assert distances.min() > geometries.MIN_DISTANCE
    reach = np.sort(atoms.get_all_distances(), axis=1)[:, 1]
    assert reach.max() < 2.0, "an atom is bonded to nothing"


def test_there_are_nine_and_seven_molecules():
    assert len(geometries.MD17) == 9
    assert len(geometries.MD22) == 7
    assert len(geometries.load()) == 16


def test_geometries_are_those_of_the_script():
    pytest.importorskip("rdkit", reason="RDKit is not installed")
    ethanol = geometries.from_smiles(geometries.MD17["ethanol"][0])
    committed = geometries.load()["ethanol"]
    assert (ethanol.numbers == committed.numbers).all()


def test_cases_are_named_once():
    names = [(case.bench, case.name) for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("bench", ["step", "shipped", "ase"])
def test_large_cases_are_checked_on_small_ones(bench):
    for case in (case for case in CASES if case.bench == bench):
        checked = cases.standing_in(case)
        assert int(checked.name) <= cases.TRUTH_ATOMS
        assert (checked is case) == (int(case.name) <= cases.TRUTH_ATOMS)
        assert checked.model == case.model


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name in ("21", "128", "192", "Si-64", "256x21", "ethanol")],
    ids=lambda case: f"{case.bench}-{case.name}",
)
def test_edges_are_counted_without_a_graph(case):
    system = case.build()
    if case.name.isdigit():
        assert system.n_atoms == int(case.name)
    assert system.count_edges(5.0) == system.graph(5.0).n_edges
    for unit in (1.0, NM):
        assert (system.positions / unit == (system.positions / unit).astype(np.float32)).all()


def test_edges_of_a_box_smaller_than_the_cutoff_are_counted():
    system = systems.crystal("Si", "diamond", 5.43, 1)
    assert system.count_edges(5.0) == system.graph(5.0).n_edges


# The gate


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
    with pytest.raises(GateError, match="add up"):
        check_plausible(replace(outcome, forces=outcome.forces + 0.1))
    with pytest.raises(GateError, match="NaN"):
        check_plausible(replace(outcome, energy=outcome.energy * torch.nan))


# Running


def scaled(factor: float) -> Implementation:
    """The exact module, its forces multiplied."""

    def prepare(*given) -> Prepared:
        right = exact(*given)

        def read(result):
            outcome = right.read(result)
            return replace(outcome, forces=outcome.forces * factor)

        return Prepared(right.step, read)

    return Implementation(f"times {factor}", prepare)


def broken(*_given) -> Prepared:
    raise RuntimeError("does not compile")


def endless(*_given) -> Prepared:
    while True:
        time.sleep(0.01)


@pytest.mark.usefixtures("small_model")
def test_what_is_wrong_gets_no_time_and_the_run_goes_on(lab, capfd):
    lab.budget.each = 2.0
    bad = [
        scaled(1.1),
        Implementation("broken", broken),
        Implementation("endless", endless),
        Implementation("small", broken, max_atoms=20),
    ]
    runner.run_case(lab, energy_case(), [*bad, scaled(1.0)])
    found = {r.impl: r for r in read_rows(lab.results.path("step"))}
    assert {name: r.gate for name, r in found.items()} == {
        "times 1.1": "fail",
        "broken": "fail",
        "endless": "fail",
        "times 1.0": "pass",
    }
    assert found["times 1.1"].error == pytest.approx(0.1, rel=1e-3)
    assert all(r.ms_p50 is None for r in found.values() if r.gate == "fail")
    assert found["times 1.0"].ms_p20 > 0
    complaints = capfd.readouterr().err
    for reason in ("forces are off", "does not compile", "took more than 2 s", "more than 20"):
        assert reason in complaints


@pytest.mark.usefixtures("small_model")
def test_the_total_time_is_bounded(lab, capfd):
    lab.budget.total = 0.0
    runner.run_case(lab, energy_case(), [scaled(1.0)])
    assert not read_rows(lab.results.path("step"))
    assert "the time is up" in capfd.readouterr().err


def test_a_model_that_is_not_there_is_skipped(lab, monkeypatch, capfd):
    monkeypatch.setattr(models, "DATA_FOLDERS", ())
    models.model.cache_clear()
    runner.run_case(lab, energy_case(model="matpes"), [scaled(1.0)])
    assert "skipped, matgl-tensornet-matpes-pbe is in none" in capfd.readouterr().err
    assert not lab.results.path("step").exists()


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_large_case_passes_by_the_small_one(lab, monkeypatch, factor):
    small = energy_case("128", build=partial(systems.random_box, 128))
    large = energy_case("256", build=partial(systems.random_box, 256), check="128")
    monkeypatch.setattr(cases, "CASES", (small, large))
    runner.run_case(lab, large, [scaled(factor)])
    (found,) = read_rows(lab.results.path("step"))
    assert (found.atoms, found.gate) == (256, "pass" if factor == 1.0 else "fail")


@pytest.mark.usefixtures("small_model")
def test_the_lab_from_end_to_end(tmp_path, capfd):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    out = tmp_path / "new" / "results"
    options = ["--only", "exact,torch,warp-graph", "--device", "cpu", "--sampling", "0.01"]
    options += ["--out", str(out)]
    assert command.main(["step", "md17", "--cases", "21", "ethanol", *options]) == 0
    rows = read_rows(out / "step.csv") + read_rows(out / "md17.csv")
    assert [(r.case, r.impl, r.gate) for r in rows] == [
        ("21", "exact", "pass"),
        ("21", "torch", "pass"),
        ("ethanol", "exact", "pass"),
        ("ethanol", "torch", "pass"),
    ]
    assert all(r.error < 1e-5 for r in rows)
    assert "warp-graph: skipped, no GPU" in capfd.readouterr().err


def test_torchmd_net_gets_the_weights_of_the_shipped_model(lab):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    case = Case("shipped", "21", partial(systems.water, 7), "shipped")
    runner.run_case(lab, case, peers.PEERS[:1])
    (found,) = read_rows(lab.results.path("shipped"))
    assert found.error < 1e-5


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("warp", [True, False])
def test_peers_compute_with_the_operators_that_they_are_named_for(warp):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    peers.rebuild(models.model("random"), warp=warp)
    from torchmdnet.models import tensornet

    assert tensornet.OPT is warp
    names = ["compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"]
    homes = [getattr(tensornet, name).__module__ for name in names]
    assert [home.startswith("torchmdnet.extensions.warp_ops") for home in homes] == 4 * [warp]


def test_steps_of_openmm_are_held_against_the_truth(lab):
    pytest.importorskip("openmm", reason="OpenMM is not installed")
    case = Case("openmm", "21", partial(systems.water, 7), "shipped")
    runner.run_case(lab, case, [one for one in openmm_steps.OPENMM if not one.needs_self_loops])
    rows = {r.impl: r for r in read_rows(lab.results.path("openmm"))}
    ours = {"openmm-python", "openmm-reference"}
    assert rows.keys() == {*ours, "engine", "openmm-python-idle", "openmm-empty"}
    assert all(0 < rows[name].error < 1e-5 for name in ours)
    assert rows["openmm-empty"].ms_p50 < rows["openmm-python"].ms_p50


def test_the_calculator_is_read_where_it_began():
    network, system = models.model("shipped"), systems.water(7)
    prepared = calculator(network, system, CPU)
    outcome = prepared.read(prepared.step())
    assert Truth.of(network, system, CPU).check(outcome, 1e-5) > 0


def test_what_takes_too_long_is_stopped():
    with pytest.raises(TimeoutError, match="more than"), at_most(0.05):
        time.sleep(5)


def test_quiet_is_quiet_and_gives_everything_back(capfd):
    with quiet():
        sys.stdout.write("Python\n")
        os.write(1, b"C\n")
        os.write(2, b"C\n")
    sys.stdout.write("heard\n")
    out, err = capfd.readouterr()
    assert out == "heard\n"
    assert err == ""


# Fidelity of simulations


def test_a_drift_is_found_under_a_ripple(rng):
    time_ps = 0.005 * np.arange(20_000)
    ripple = 5e-5 * np.sin(2 * np.pi * time_ps / 0.0103) + 1e-5 * rng.normal(size=len(time_ps))
    for slope in (0.0, 3e-6, -3e-6):
        found, sigma = fidelity.drift(slope * time_ps + ripple, 0.005)
        assert abs(found - slope) < 4 * sigma < 1e-7


def test_simulations_are_held_against_the_truth(lab, monkeypatch):
    monkeypatch.setattr(fidelity, "NVE_STEPS", 4)
    monkeypatch.setattr(fidelity, "NVE_EVERY", 2)
    monkeypatch.setattr(fidelity, "ENERGY_LIMIT", 1e-12)
    ways = (fidelity.SIMULATED[2], fidelity.TRUTH)
    monkeypatch.setattr(fidelity, "SIMULATED", ways)
    fidelity.run_fidelity(lab, ["nve-aspirin"], [way.name for way in ways])
    rows = {(r.case, r.impl): r for r in read_rows(lab.results.path("fidelity"))}
    assert rows["nve-energy-aspirin", "exact-float64"].error == 0
    assert rows["nve-forces-aspirin", "exact-float64"].gate == "pass"
    rounded = rows["nve-energy-aspirin", "exact"]
    assert 1e-7 < rounded.error < 1e-3
    assert (rounded.gate, rounded.ms_p50) == ("fail", None)
    forces = rows["nve-forces-aspirin", "exact"]
    assert 1e-8 < forces.error < 1e-5
    assert forces.ms_p50 > 0


def test_a_drift_is_that_of_the_total_energy(lab, monkeypatch):
    monkeypatch.setattr(fidelity, "DRIFT_STEPS", 20)
    monkeypatch.setattr(fidelity, "DRIFT_EVERY", 1)
    monkeypatch.setattr(fidelity, "simulate", heating)
    monkeypatch.setattr(fidelity, "DRIFT_LIMIT", 1e-2)
    fidelity.run_fidelity(lab, ["drift-aspirin"], ["exact"])
    rows = {r.case: r for r in read_rows(lab.results.path("fidelity"))}
    assert rows["drift-aspirin"].gate == "pass"
    assert rows["drift-aspirin"].error == pytest.approx(2e-3, rel=1e-3)
    assert rows["drift-aspirin-sigma"].error < 1e-5


def test_total_energies_through_openmm_are_those_through_ase(monkeypatch):
    pytest.importorskip("openmm")
    monkeypatch.setattr(fidelity, "DRIFT_STEPS", 20)
    monkeypatch.setattr(fidelity, "DRIFT_EVERY", 2)
    atoms = fidelity.start(fidelity.DRIFT["aspirin"](), "cpu")
    ways = [way for way in fidelity.SIMULATED if way.name in ("engine", "openmm")]
    energies = [list(way.total_energies(atoms.copy(), "cpu", [])) for way in ways]
    assert len(energies[0]) == len(energies[1]) == 10
    assert np.abs(np.subtract(*energies)).max() < 0.1 * np.ptp(energies[0])


def heating(atoms: Atoms, steps: int, every: int, times: list[float]) -> Iterator[Atoms]:
    """Atoms that stay where they are and gain 2 meV an atom and picosecond."""
    gained = 2e-3 * len(atoms) * every * fidelity.TIME_STEP / 1000
    for _ in range(steps // every):
        kinetic = atoms.get_kinetic_energy()
        atoms.set_momenta(atoms.get_momenta() * np.sqrt(1 + gained / kinetic))
        times.append(1e-3)
        yield atoms


# Protein language models


@pytest.fixture
def tiny_proteins(monkeypatch) -> Iterator[list[str]]:
    """Cases of models with two layers, the second of them padded, the last ones with heads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        pytest.importorskip("transformers", reason="transformers is not installed")
    for name, family in (("tiny-esm", "Esm"), ("tiny-bert", "Bert")):
        monkeypatch.setitem(bio.ARCHITECTURES, name, bio.Architecture(family, 2, 32, 4))
    monkeypatch.setitem(bio.FAMILIES["Bert"], "max_position_embeddings", 64)
    monkeypatch.setattr(bio, "MEDIAN", 20)
    monkeypatch.setattr(bio, "SHORTEST", 5)
    monkeypatch.setattr(bio, "LONGEST", 40)
    made = [bio.BioCase("tiny-esm", 2, 9), bio.BioCase("tiny-bert", 3)]
    made += [bio.BioCase(name, 2, head=True) for name in ("tiny-esm", "tiny-bert")]
    for case in made:
        monkeypatch.setitem(bio.CASES, case.name, case)
    bio.truth.cache_clear()
    yield [case.name for case in made]
    bio.truth.cache_clear()


@pytest.mark.parametrize("case", bio.CASES.values(), ids=lambda case: case.name)
def test_proteins_are_padded_to_the_longest(case):
    ids, mask = case.inputs("cpu").values()
    lengths = mask.sum(1)
    padding = bio.FAMILIES[bio.ARCHITECTURES[case.model].family]["pad_token_id"]
    assert int(lengths.max()) == ids.shape[1]
    assert len(ids) == case.batch
    assert torch.equal(ids != padding, mask.bool())
    if case.length is None:
        assert 200 < float(lengths.float().median()) < 400
        assert 50 <= int(lengths.min()) < int(lengths.max()) <= 1000


def test_language_models_are_held_against_fp32(lab, tiny_proteins, capfd):
    bio.run_bio(lab, tiny_proteins, list(bio.WAYS))
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("bio"))
    runnable = ["accelerated-fp16", "reference", "sdpa-fp16"]
    assert [(r.case, r.impl) for r in rows] == [(n, i) for n in tiny_proteins[:2] for i in runnable]
    assert {r.gate for r in rows} == {"pass"}
    assert rows[0].atoms == 18
    errors = {r.impl: r.error for r in rows}
    assert errors["reference"] < 1e-12 < errors["sdpa-fp16"]
    asked = {(r.case, r.impl): r for r in read_rows(lab.results.path("bio-fidelity"))}
    for model in ("tiny-esm", "tiny-bert"):
        assert 0 < asked[f"{model}-hidden", "accelerated-fp32"].error < 1e-5
        for impl in ("accelerated-fp16", "sdpa-fp16"):
            assert asked[f"{model}-cosine", impl].gate == "pass"
            assert (f"{model}-top1", impl) in asked
    assert len(asked) == 12


@pytest.mark.parametrize("fault", [0.9, float("nan")])
def test_wrong_hidden_states_get_no_time(lab, tiny_proteins, monkeypatch, fault):
    def wrong(model, inputs):
        right = bio.eager(model, inputs)
        calls = itertools.count()

        def call():
            result = right()
            if next(calls):  # right only once
                result.last_hidden_state[0, 0, 0] += fault
            return result

        return call

    monkeypatch.setitem(bio.WAYS, "wrong", bio.Way("wrong", wrong))
    bio.run_bio(lab, tiny_proteins[:1], ["wrong"])
    (found,) = read_rows(lab.results.path("bio"))
    assert (found.gate, found.ms_p50) == ("fail", None)
    assert not found.error < 1e-4


def test_only_choices_that_stand_out_must_be_the_same():
    expected = bio.Answers(torch.zeros(3, 1), torch.tensor([[1.0, 0], [0, 1e-4], [0, 2]]))
    actual = bio.Answers(torch.zeros(3, 1), torch.tensor([[0.0, 1], [1, 0], [0, 2]]))
    assert bio.changed_choices(actual, expected) == 1


def test_language_models_are_tabulated_and_drawn(tmp_path):
    times = {"accelerated-fp16": 0.5, "reference": 4.0, "sdpa-fp16": 3.0, "compile-fp16": 1.0}
    made = [row(bench="bio", case="esm2-8m-1x128", impl=i, ms=ms) for i, ms in times.items()]
    Results(tmp_path).add(made)
    table = figures.tables(tmp_path)
    assert "| esm2-8m-1x128 | 4 | 1 (compile-fp16) | **0.5** | 8.0x | 2.0x |" in table
    (path,) = figures.draw(tmp_path)
    assert path.name == "bio.svg"
    assert "best other, fp16" in path.read_text()


# Operators


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.mark.parametrize("n_rows", [1024, 500])
def test_pytorchs_attention_is_that_of_packed_sequences(n_rows):
    q, k, v, row_ptr = operators.Source(n_rows, CPU).sequences()
    expected = reference_attention(q, k, v, row_ptr, len(q) // (len(row_ptr) - 1))
    found = operators.attention_eager(q, k, v, row_ptr)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_rows", [20, 21, 4095, 4096])
def test_segments_hold_all_rows(n_rows):
    _, row_ptr = operators.Source(n_rows, CPU).segments()
    assert int(row_ptr[-1]) == n_rows
    assert int(row_ptr.diff().max()) <= 21


OPERATOR = Operator("double", operators.Source.packed, double, lambda x: x + x)


def test_operators_are_measured_forward_and_backward(lab, monkeypatch):
    monkeypatch.setattr(ops, "copy_timing", lambda *_args: Timing(1.0, 1.0, 1.0, None))
    ops.run_operators(lab, [16], [OPERATOR])
    found = [(r.case, r.impl, r.gate) for r in read_rows(lab.results.path("ops"))]
    assert found == [
        (case, impl, "pass")
        for case in ("double-16", "double+grad-16")
        for impl in (ops.OURS, ops.EAGER)
    ]
    moved = with_bytes("double-16", 2 * 9 * 16 * operators.CHANNELS * 4)
    copied = with_bytes("copy", 2 * timing.COPY_BYTES)
    assert {r.case for r in read_rows(lab.results.path("bandwidth"))} == {copied, moved}


def test_operators_are_tabulated_with_their_bandwidth(tmp_path):
    made = [
        row(bench="ops", case="compose-1024", impl=impl, ms=ms, atoms=1024)
        for impl, ms in (("triton", 1.0), ("torch", 3.0))
    ]
    made.append(replace(made[0], bench="bandwidth", case=with_bytes("compose-1024", 10**9)))
    copied = with_bytes("copy", 10**9)
    made.append(row(bench="bandwidth", case=copied, impl="torch", ms=0.5, atoms=0))
    Results(tmp_path).add(made)
    table = figures.operators_table(tmp_path)
    assert "| compose | 3.0x (50%) |" in table
    assert "2.00 TB/s" in table


def test_operators_are_held_against_a_copy_of_their_size(tmp_path):
    case = with_bytes("compose-1024", 10**9)
    rows = [("ops", "compose-1024", "triton", 1.0), ("ops", "compose-1024", "torch", 3.0)]
    rows += [("bandwidth", case, "triton", 1.0), ("bandwidth", case, "copy", 0.8)]
    rows.append(("bandwidth", with_bytes("copy", 10**9), "torch", 0.5))
    Results(tmp_path).add([row(bench=b, case=c, impl=i, ms=ms, atoms=1024) for b, c, i, ms in rows])
    assert "| compose | 3.0x (80%) |" in figures.operators_table(tmp_path)


def test_steps_through_openmm_are_compared_where_both_ran(tmp_path):
    times = {"engine": 0.3, "openmm-torch": 0.8, "openmm-reference": 0.4, "openmm-torchmd-net": 4.0}
    made = [row(bench="openmm", case="21", impl=i, ms=ms, atoms=21) for i, ms in times.items()]
    Results(tmp_path).add(made)
    assert "| 21 | 0.3 | 0.8 | 0.4 | 4 | – | 5.0x | 54 and 10.8 |" in figures.openmm_table(tmp_path)
    peer = replace(made[0], impl="openmm-torchmd-net-reference", ms_p50=2.0)
    Results(tmp_path).add([peer])
    assert "| 4 | 2 | 5.0x | 108 and 21.6 |" in figures.openmm_table(tmp_path)


@pytest.mark.parametrize(
    "wrong", [lambda x: 2.001 * x, lambda x: (2 * x)[:1], lambda x: x * torch.nan]
)
def test_a_wrong_operator_gets_no_time(lab, wrong):
    ops.run_operator(lab, replace(OPERATOR, ours=wrong), 16, backward=False)
    ours, eager = read_rows(lab.results.path("ops"))
    assert (ours.impl, ours.gate, ours.ms_p50) == ("triton", "fail", None)
    assert (eager.impl, eager.gate) == ("torch", "pass")


@pytest.mark.parametrize(
    "operator",
    [operator for operator in operators.OPERATORS if isinstance(operator.ours, partial)],
    ids=lambda operator: operator.name,
)
def test_operators_in_pytorch_are_the_references(operator):
    """Eager PyTorch is the truth of an operator here, so it must be that of the kernels too."""
    inputs = operator.inputs(operators.Source(16, CPU))
    module, name = operator.ours.args
    stem = module.rpartition(".")[2]
    expected = operators.reference(stem, name, **operator.ours.keywords)(*inputs)
    for ours, theirs in zip(
        ops.outputs_of(operator.eager(*inputs)), ops.outputs_of(expected), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("small_model")
def test_fused_messages_in_pytorch_are_those_of_the_model():
    y, positions = inputs = radial_messages.inputs(operators.Source(21, CPU))
    graph = neighbor_list(positions.numpy(), 5.0)
    network = models.model("random")
    edges = network._edges(graph.vectors(positions, None, None).float(), graph)
    factors = radial_messages.radial_functions(network)[1](
        torch.cat([edges.distances, torch.zeros(1)])
    ).unflatten(1, (3, -1))
    expected = edges.pass_messages(y, factors) + scale(y, factors[-1:])
    torch.testing.assert_close(radial_messages.eager(*inputs), expected, rtol=1e-5, atol=1e-6)


def test_neighbor_rows_hold_the_graph():
    graph = systems.random_box(128).graph(5.0)
    rows = radial_messages.rows_of(graph)
    found = rows.to_csr()
    for ours, theirs in zip(
        found, (graph.row_ptr, graph.senders, graph.shifts, graph.reverse), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert int(rows.needed) == int(graph.row_ptr.diff().max())
    with pytest.raises(ValueError, match="room for 8"):
        radial_messages.rows_of(graph, 8)


# On a GPU


@pytest.fixture
def gpu_lab(tmp_path) -> Lab:
    device = torch.device("cuda")
    return Lab(device, timing.environment(device), Results(tmp_path), Budget(sampling=0.05))


@pytest.mark.gpu
def test_a_gpu_is_timed_by_its_own_clock(gpu_lab):
    bandwidth = timing.copy_bandwidth(gpu_lab.device)
    assert 1e10 < bandwidth < 1e14
    timing.reset_peak(gpu_lab.device)
    x = torch.zeros(1 << 28, dtype=torch.uint8, device=gpu_lab.device)
    for options in ({}, {"flush": True}, {"wall": True}):
        found = measure(lambda: x.add_(1), gpu_lab.device, seconds=0.05, **options)
        assert 2 * x.nbytes / bandwidth * 1e3 / 3 < found.p50 < 50
        assert found.peak_mib >= 256


@pytest.mark.gpu
def test_every_implementation_is_right_on_a_gpu(tmp_path):
    """In a process of its own: what others have done to PyTorch, its compiler does not forget."""
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    options = ["step", "--cases", CASES[0].name, "--peers", "torch,warp,warp-graph"]
    everyone = command._implementations(CASES[0], command.parse(options))
    options += ["--out", str(tmp_path)]
    checkout = Path(command.__file__).parents[1]
    command_line = [sys.executable, "-m", "benchmarks", *options]
    subprocess.run(command_line, check=True, cwd=checkout)  # noqa: S603 (of our own making)
    rows = read_rows(tmp_path / "step.csv")
    assert {r.impl: r.gate for r in rows} == {one.name: "pass" for one in everyone}


@pytest.mark.gpu
@pytest.mark.parametrize("operator", operators.OPERATORS, ids=lambda operator: operator.name)
def test_every_operator_is_right_on_a_gpu(gpu_lab, operator):
    for backward in (False, True)[: 1 + operator.differentiable]:
        ops.run_operator(gpu_lab, operator, 500, backward)
    rows = read_rows(gpu_lab.results.path("ops"))
    assert {r.gate for r in rows} == {"pass"}


# Figures and tables


@pytest.fixture
def measured(tmp_path) -> Path:
    rows = [
        row(case=str(n), impl=impl, ms=ms * n / 21, atoms=n)
        for n in (21, 4096)
        for impl, ms in (("engine", 0.1), ("torch", 10.0), ("warp", 11.0), ("warp-graph", 1.5))
    ]
    rows.append(row(case="65536", impl="engine", ms=20.0, atoms=65536))
    rows.append(row(case="65536", impl="torch", ms=None, atoms=65536))
    rows += [replace(r, bench="md17", case="ethanol") for r in rows[:4]]
    rows += [replace(r, bench="md22", case="DHA") for r in rows[:4]]
    rows += [row(bench="ase", ms=0.1), row(bench="ase", impl="calculator", ms=0.25)]
    Results(tmp_path).add(rows)
    return tmp_path


def test_the_readme_table_is_drawn_from_the_csv(measured):
    table = figures.readme_table(measured)
    assert (
        "| 21 | 10 | 1.5 (warp-graph) | **0.1** | 15.0x | 0.5 (peer 0.5) | 1e-07 (1e-07) |" in table
    )
    assert "| 65,536 | – | – | **20** | – | 0.5 | 1e-07 |" in table
    assert "a GPU, PyTorch 2.11, Triton 3.6, commit abc1234, 2026-01-02" in table


def test_all_tables(measured):
    text = figures.tables(measured)
    assert "| mean | | | | | 100.0x | 15.0x |" in text.replace("|  ", "| ")
    assert "| 21 | 0.1 | 0.25 | 0.150 |" in text


def test_figures_are_drawn_from_the_csv_and_reproducible(measured):
    (path,) = figures.draw(measured)
    drawn = path.read_text()
    assert path.name == "step.svg"
    assert "TorchMD-NET, Warp + CUDA graph" in drawn
    figures.draw(measured)
    assert path.read_text() == drawn


def test_nothing_is_drawn_from_nothing(tmp_path):
    assert figures.draw(tmp_path) == []
    assert figures.tables(tmp_path) == ""


# The command


def test_results_of_other_machines_are_merged(measured, tmp_path, capsys):
    out = tmp_path / "merged"
    assert command.main(["--merge", str(measured), "--out", str(out), "--figures"]) == 0
    assert (out / "step.csv").read_text() == (measured / "step.csv").read_text()
    assert "**0.1**" in capsys.readouterr().out
    assert command.main(["--merge", str(tmp_path / "nowhere"), "--out", str(out)]) == 2


@pytest.mark.parametrize(
    ("arguments", "cases_of", "operators_of", "sizes"),
    [
        (["step", "--cases", "21"], {"step"}, 0, []),
        (["step", "ops", "--cases", "4096"], {"step"}, len(operators.OPERATORS), [4096]),
        (["step", "ops", "--cases", "21"], {"step"}, 0, []),
        (["ops", "--cases", "compose"], set(), 1, list(operators.SIZES)),
        (["md17", "md22"], {"md17", "md22"}, 0, []),
        (["bio", "ops", "--cases", "esm2-8m-1x128"], set(), 0, []),
        (["alignment", "--cases", "dna-512"], set(), 0, []),
        ([], set(command.STEP_BENCHES), len(operators.OPERATORS), list(operators.SIZES)),
    ],
)
def test_cases_are_selected_by_name(arguments, cases_of, operators_of, sizes):
    selected, chosen, found = command._select(command.parse(arguments))
    assert {case.bench for case in selected} == cases_of
    assert (len(chosen), found) == (operators_of, sizes)


@pytest.mark.parametrize(
    ("peers_of", "names"),
    [
        ("all", ["engine", "exact", "torch", "warp", "warp-graph", "warp-compile"]),
        ("none", ["engine", "exact"]),
        ("warp,torch", ["engine", "exact", "torch", "warp"]),
    ],
)
def test_peers_are_selected_by_name(peers_of, names):
    options = command.parse(["--peers", peers_of])
    assert [one.name for one in command._implementations(CASES[0], options)] == names
    ase = next(case for case in CASES if case.bench == "ase")
    assert [one.name for one in command._implementations(ase, options)] == ["calculator", "engine"]


def test_profilers_are_told_how_to_run(capsys):
    assert command.main(["step", "--cases", "4096", "--only", "engine", "--ncu", "--nsys"]) == 0
    ncu, nsys = capsys.readouterr().out.splitlines()
    assert ncu.startswith("ncu ")
    assert nsys.startswith("nsys profile ")
    for line in (ncu, nsys):
        assert line.endswith("-m benchmarks step --cases 4096 --only engine --trace")


@pytest.mark.usefixtures("small_model")
def test_a_profile_is_printed(capsys):
    options = ["--cases", "21", "--only", "exact", "--device", "cpu", "--profile"]
    assert command.main(["step", *options]) == 0
    assert "aten::" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["stop"],
        ["step", "--cases", "22"],
        ["step", "--peers", "us"],
        ["step", "--only", "us"],
        ["bio", "--only", "us"],
        ["alignment", "--cases", "dna"],
    ],
)
def test_unknown_names_are_refused_in_one_line(arguments, capsys):
    assert command.main([*arguments, "--device", "cpu"]) == 2
    complaint = capsys.readouterr().err
    assert "is unknown: use " in complaint
    assert complaint.count("\n") == 1


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command(context_settings=bench_command.PASS_ON)(bench_command.bench)
    made.command("other")(lambda: None)
    return made


def test_the_cli_passes_everything_on(app, measured):
    result = CliRunner().invoke(app, ["bench", "--figures", "--out", str(measured)])
    assert result.exit_code == 0
    assert "**0.1**" in result.output
    assert "--peers" in CliRunner().invoke(app, ["bench", "--help"]).output


def test_the_cli_needs_a_checkout(app, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_command.mlff_triton, "__file__", str(tmp_path / "a" / "__init__.py"))
    with pytest.raises(InputError, match="needs a checkout"):
        CliRunner().invoke(app, ["bench", "step"], catch_exceptions=False)


def test_committed_results_are_whole():
    for path in sorted(command.RESULTS.glob("*.csv")):
        rows = read_rows(path)
        assert rows
        assert {r.bench for r in rows} == {path.stem}
        for r in rows:
            assert (r.ms_p50 is None) == (r.gate == "fail")
        with path.open(newline="") as file:
            columns = columns_of(kind_of(path))
            assert all(len(record) == len(columns) for record in csv.reader(file))
