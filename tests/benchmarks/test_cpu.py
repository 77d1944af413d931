"""The benchmark on CPUs: turns, rows, the gate, tables and the figure."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.cpu import (
    cases,
    contest,
    entrants,
    evaluations,
    first_calls,
    profiling,
    ranks,
    runner,
    simulations,
)
from benchmarks.cpu import session as session_module
from benchmarks.cpu.entrants import ENTRANTS, Entrant
from benchmarks.cpu.memory import Peak
from benchmarks.cpu.methods import engine_of
from benchmarks.cpu.session import Session
from benchmarks.engine.gate import GateError
from benchmarks.lab import cpu_tables, figures
from benchmarks.lab.schema import PairedRow, Results, columns_of, read_rows
from benchmarks.systems import models, systems
from mlff_triton._common import timing
from tests.support.benchmark_rows import CPU, row

TINY = cases.Case("21", cases.EVALUATION, partial(systems.random_box, 21), "random")


def paired(case: str, impl: str, threads: int, ms: float | None, **changes) -> PairedRow:
    """Make a row of a CPU."""
    made = row(case, impl, ms, bench="cpu", gpu=f"A CPU (threads: {threads})")
    given = {"threads": threads, "precision": "float32", "ratio": 1.0} | changes
    return PairedRow(**{**asdict(made), **given})


def scaled(factor: float, name: str = "cpu") -> Entrant:
    """Return a method that computes forces once, with the exact module, and multiplies them."""

    def prepare(model, system):
        outcome = engine_of(model, system, "exact")(system.positions)
        wrong = replace(outcome, forces=outcome.forces * factor)
        return lambda _positions: wrong

    return Entrant(name, prepare)


@pytest.fixture
def tiny(monkeypatch, small_model, lab):  # noqa: ARG001
    """Measure a tiny case with methods that take no time."""
    monkeypatch.setitem(runner.CASES, "21", TINY)
    for name in ("cpu", "exact"):
        monkeypatch.setitem(ENTRANTS, name, scaled(1.0, name))
    monkeypatch.setattr(evaluations, "TURN", 1.0)
    threads = torch.get_num_threads()
    yield lab
    assert torch.get_num_threads() == threads


def test_methods_take_turns_and_others_are_compared_round_by_round():
    clock, order = count(1), []

    def turn(name: str, factor: float):
        order.append(name)
        return factor * 2.0 ** (next(clock) // 2)  # the machine slows down from round to round

    turns = {("cpu", 1): partial(turn, "cpu", 1.0), ("exact", 1): partial(turn, "exact", 3.0)}
    found = contest.hold(turns, seconds=0.0, rounds=(4, 9))
    assert "".join(name[0] for name in order) == "ceecceec"
    assert len(found.ms["cpu", 1]) == 4
    assert found.ratio(("cpu", 1), ("cpu", 1)) == 1.0
    assert 3 / 2 <= found.ratio(("exact", 1), ("cpu", 1)) <= 6
    assert found.ratio(("cpu", 1), ("cpu", 2)) is None


def test_a_method_that_fails_among_others_leaves_the_contest():
    lives = iter([1.0, 1.0])
    turns = {("frail", 1): lambda: next(lives), ("cpu", 1): lambda: 2.0}
    found = contest.hold(turns, seconds=0.0, rounds=(4, 4))
    assert list(found.ms) == [("cpu", 1)]
    assert len(found.ms["cpu", 1]) == 4
    assert isinstance(found.failures["frail", 1], StopIteration)


def test_operators_of_torchmd_net_are_those_of_the_model(small_model):  # noqa: ARG001
    """Its models share a selection of operators, which must not be that of the last model."""
    tensornet = pytest.importorskip("torchmdnet.models.tensornet")
    system = systems.random_box(21)
    plain, warp = (
        ENTRANTS[f"torchmd-net-{name}"].prepare(models.model("random"), system)
        for name in ("torch", "warp")
    )
    plain(system.positions)
    assert tensornet.OPT is False
    warp(system.positions)
    assert tensornet.OPT is True


def test_atoms_move_in_every_evaluation():
    seen = []
    turn = evaluations.Moving(seen.append, np.zeros((5, 3)), threads=1, count=3)
    assert turn() > 0
    assert len(seen) == 4
    assert len({positions.tobytes() for positions in seen}) == 4
    assert 0 < max(np.abs(positions).max() for positions in seen) <= evaluations.AMPLITUDE


def test_rows_have_threads_precision_and_ratios(tiny):
    runner.run_cpu(tiny, ["21"], ["cpu", "exact"], [1, 2])
    rows = read_rows(tiny.results.path("cpu"))
    assert [(r.impl, r.threads) for r in rows] == [
        (name, threads) for name in ("cpu", "exact") for threads in (1, 2)
    ]
    assert all(r.gate == "pass" and r.error < 1e-5 and r.atoms == 21 for r in rows)
    assert all(r.gpu.endswith(f"(threads: {r.threads})") for r in rows)
    assert [r.ratio for r in rows[:2]] == [1.0, 1.0]
    assert rows[2].ratio > 0


def test_precisions_of_methods_are_in_their_rows(tiny):
    runner.run_cpu(tiny, ["21"], ["exact-float64"], [1])
    (found,) = read_rows(tiny.results.path("cpu"))
    assert (found.precision, found.ratio) == ("float64", None)
    assert found.error < 1e-12


def test_wrong_forces_get_no_time(tiny, monkeypatch, capfd):
    monkeypatch.setitem(ENTRANTS, "cpu", scaled(1.1))
    runner.run_cpu(tiny, ["21"], ["cpu", "exact"], [1])
    wrong, exact = read_rows(tiny.results.path("cpu"))
    assert (wrong.gate, wrong.ms_p50) == ("fail", None)
    assert wrong.error == pytest.approx(0.1, rel=1e-3)
    assert (exact.gate, exact.ratio) == ("pass", None)
    assert "forces are off" in capfd.readouterr().err


def test_a_large_box_passes_by_the_small_one_and_has_a_peak(tiny, monkeypatch):
    small = replace(TINY, kind=cases.SCALING)
    large = replace(small, name="40", build=partial(systems.random_box, 40), stand_in=small)
    monkeypatch.setitem(runner.CASES, "40", large)
    runner.run_cpu(tiny, ["40"], ["cpu", "exact"], [1])
    (found,) = read_rows(tiny.results.path("cpu"))
    assert (found.impl, found.atoms, found.gate) == ("cpu", 40, "pass")


def test_a_compiled_peer_needs_a_compiler(tiny, monkeypatch, capfd):
    monkeypatch.setattr("shutil.which", lambda _name: None)
    runner.run_cpu(tiny, ["21"], ["torchmd-net-torch-compile"], [1])
    assert "skipped, no C++ compiler" in capfd.readouterr().err
    assert not tiny.results.path("cpu").exists()


def test_packages_that_are_missing_or_have_other_models_are_skipped(tiny, monkeypatch, capfd):
    runner.run_cpu(tiny, ["21"], ["matgl"], [1])
    monkeypatch.setattr(entrants, "find_spec", lambda _name: None)
    runner.run_cpu(tiny, ["21"], ["torchmd-net-torch"], [1])
    reasons = capfd.readouterr().err
    assert "matgl: skipped, " in reasons
    assert "torchmd-net-torch: skipped, torchmdnet is not installed" in reasons


def test_a_model_that_is_missing_is_skipped(tiny, monkeypatch, capfd):
    monkeypatch.setitem(models.MODELS, "matpes", partial(models.matpes_model, ()))
    models.model.cache_clear()
    runner.run_cpu(tiny, ["matpes-192"], ["cpu"], [1])
    assert (
        "cpu matpes-192: skipped, matgl-tensornet-matpes-pbe is in none" in capfd.readouterr().err
    )


def test_torchmd_net_has_our_forces(tiny):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    runner.run_cpu(tiny, ["21"], ["torchmd-net-torch"], [1])
    (found,) = read_rows(tiny.results.path("cpu"))
    assert (found.gate, found.threads) == ("pass", 1)


def test_cases_have_threads_that_the_machine_has(tiny, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    session = Session(tiny, tiny.where, [])
    assert session.threads(cases.CASES["scaling-65856"]) == [1, 2, 4]
    assert session.threads(cases.CASES["1029"]) == [1, 2]
    assert replace(session, asked=[8]).threads(TINY) == [8]


def test_the_bench_runs_from_the_command_line(tiny, tmp_path):
    options = ["--cases", "21", "--threads", "1", "--only", "cpu", "--out", str(tmp_path)]
    assert command.main(["cpu", *options, "--device", "cpu", "--sampling", "0.01"]) == 0
    assert [r.impl for r in read_rows(tmp_path / "cpu.csv")] == ["cpu"]
    assert command.main(["cpu", "--cases", "22", "--device", "cpu"]) == 2
    assert tiny.device == CPU


def test_the_peak_is_that_of_this_moment():
    peak = Peak()
    block = np.ones(8 << 20)  # 64 MiB
    found = peak.mib()
    assert found is None or found > block.nbytes / 2**20


class Run:
    """A simulation of a few ms per step."""

    def __init__(self, ms: float, error: float = 1e-7) -> None:
        self.ms, self.error, self.steps = ms, error, 20

    def __call__(self) -> float:
        if self.ms <= 0:
            raise RuntimeError("blew up")
        return self.ms

    def check(self) -> float:
        if self.error > 1e-4:
            raise GateError("forces are off", self.error)
        return self.error


def test_simulations_have_ratios_and_failures_have_no_times(tiny, capfd):
    runs = {"cpu": Run(2.0), "exact": Run(7.0), "command": Run(0.0), "wrong": Run(1.0, 0.1)}
    session = Session(tiny, tiny.where, [])
    session.run(TINY, {(name, 1): run for name, run in runs.items()}, base=("cpu", 1))
    found = {r.impl: r for r in read_rows(tiny.results.path("cpu"))}
    assert {name: (r.gate, r.ratio) for name, r in found.items()} == {
        "cpu": ("pass", 1.0),
        "exact": ("pass", 3.5),
        "command": ("fail", None),
        "wrong": ("fail", None),
    }
    assert found["wrong"].error == 0.1
    assert runs["cpu"].steps == 20  # ms of sampling over three runs of 2 ms per step
    assert "blew up" in capfd.readouterr().err


def test_steps_of_simulations_are_timed_in_this_process(tiny, monkeypatch):
    water = cases.Case("md-21", cases.MD, partial(systems.water, 7))
    monkeypatch.setattr(simulations, "BACKENDS", ("exact",))
    monkeypatch.setattr(simulations, "STEPS", (4, 4))
    monkeypatch.setattr(session_module, "STEPS", (4, 4))
    monkeypatch.setattr(session_module, "RUNS", 1)
    monkeypatch.setitem(runner.CASES, "md-21", water)
    runner.run_cpu(tiny, ["md-21"], ["exact", "cpu"], [1])
    (found,) = read_rows(tiny.results.path("cpu"))
    assert (found.impl, found.gate, found.atoms) == ("exact", "pass", 21)
    assert 0 < found.error < 1e-5


def test_the_command_takes_its_threads(monkeypatch):
    seen = []

    def run(*given):
        case, _, _, plan, _, threads = given
        seen.append((plan.steps(case), threads))
        return SimpleNamespace(ms=2.0)

    monkeypatch.setattr(simulations.command, "run", run)
    start = simulations.drawn(TINY.build())
    assert simulations.Commanded(TINY, start, threads=2, steps=60)() == 2.0
    assert seen == [(60, 2)]


def test_first_calls_have_rows_by_cache(tiny, monkeypatch):
    times = timing.Timing(1.0, 2.0, 3.0, None)
    found = {(state, "forces"): (times, 1e-7) for state in ("cold", "warm")}
    monkeypatch.setattr(first_calls, "time_stages", lambda *_given: found)
    first = replace(TINY, name="first-21", kind=cases.FIRST)
    monkeypatch.setitem(runner.CASES, "first-21", first)
    runner.run_cpu(tiny, ["first-21"], ["forces"], [1])
    rows = read_rows(tiny.results.path("cpu"))
    assert [(r.case, r.impl) for r in rows] == [
        ("first-21-cold", "forces"),
        ("first-21-warm", "forces"),
    ]


def test_ranks_are_compared_with_threads(tiny, monkeypatch):
    def run(command, *, env, **_options):
        threads, folder = env["OMP_NUM_THREADS"], Path(command[-1])
        name = f"ranks-{command[2]}"
        Results(folder).add([row("a", name, float(threads), bench="lammps")])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(ranks, "find_spec", lambda _name: True)
    monkeypatch.setattr(ranks.subprocess, "run", run)
    monkeypatch.setenv(timing.COMMIT, "abc1234")  # which git would be asked for
    monkeypatch.setitem(runner.CASES, "lammps-21", replace(TINY, kind=cases.LAMMPS))
    runner.run_cpu(tiny, ["lammps-21"], ranks.NAMES, [1, 2])
    rows = read_rows(tiny.results.path("cpu"))
    assert [(r.impl, r.threads, r.ratio) for r in rows] == [
        ("ranks-1", 2, 1.0),
        ("ranks-2", 1, 0.5),
    ]


def test_lammps_that_is_missing_is_skipped(tiny, monkeypatch, capfd):
    monkeypatch.setattr(ranks, "find_spec", lambda _name: None)
    runner.run_cpu(tiny, ["lammps-1029"], ranks.NAMES, [1, 2])
    assert "LAMMPS is not installed" in capfd.readouterr().err


def test_a_profile_has_loops_and_operators():
    pytest.importorskip("numba", reason="Numba is not installed")
    from mlff_triton.kernels.common.cpu import threads

    arrays = np.ones((3, 1000), np.float32), 0, 3

    def loop(array, first, last):
        array[first:last] += 1

    with (
        profiling.recorded_loops() as n_bytes,
        torch.profiler.profile(record_shapes=True) as recorded,
    ):
        for _ in range(profiling.STEPS):
            threads.in_parallel(loop, [arrays])
            torch.ones(30, 20) @ torch.ones(20, 10)
    events = recorded.key_averages(group_by_input_shape=True)
    text = profiling.table(events, n_bytes, whole=1e3)
    (name,) = n_bytes
    line = next(line for line in text.splitlines() if line.startswith(name))
    assert line.split()[3:5] == ["1.0", "0.01"]  # calls and MB per step
    assert any(line.startswith("aten::mm") and "0.00" in line for line in text.splitlines())
    assert "Python, and all the rest" in text.splitlines()[1]
    assert threads.in_parallel.__module__.endswith("threads")


def test_columns_are_those_of_others_and_three_more(tmp_path):
    assert columns_of(PairedRow)[-3:] == ("threads", "precision", "ratio")
    rows = [paired("21", "cpu", 1, 2.0), paired("21", "cpu", 2, None, ratio=None)]
    Results(tmp_path).add(rows)
    assert read_rows(tmp_path / "cpu.csv") == rows


def test_tables_and_the_figure_are_made_from_the_csv(tmp_path):
    peers = [("torchmd-net-torch", 30.0, 15.0), ("torchmd-net-warp", 40.0, 20.0)]
    rows = [paired("21", "cpu", n, ms) for n, ms in ((1, 2.0), (2, 1.5))]
    rows += [paired("21", "exact", 2, 6.0, ratio=4.1)]
    rows += [paired("21", impl, 2, ms, ratio=ratio) for impl, ms, ratio in peers]
    rows += [paired("scaling-21", "cpu", n, 64.0 / n**0.9) for n in (1, 2, 16)]
    Results(tmp_path).add(rows)
    line = "| 21 | 21 | 2 | **1.5** | 6 | – | 30 (torchmd-net-torch) | 4.10x | 15.00x | 1e-07"
    text = cpu_tables.evaluations(tmp_path)
    assert line in text
    assert "| 21 | 21 | 1 | **2** | – | – | – | – | – | 1e-07 |" in text
    assert "Measured: A CPU, PyTorch" in text
    assert "| 21 | 16 | 5.28 | 12.1x | 0.5 |" in cpu_tables.threads(tmp_path)
    (figure,) = figures.draw(tmp_path)
    assert (figure.name, "21 atoms" in figure.read_text()) == ("cpu.svg", True)
