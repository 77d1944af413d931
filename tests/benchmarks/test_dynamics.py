from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import units

from benchmarks import __main__ as entry
from benchmarks.dynamics import cases as md
from benchmarks.dynamics import command, implementations, melted, runner, torchmd_net
from benchmarks.dynamics.cases import CASES, QUICK, Case, Plan
from benchmarks.dynamics.melted import Start
from benchmarks.engine.gate import GateError, Truth
from benchmarks.engine.implementations import Outcome
from benchmarks.lab import figures, tables
from benchmarks.lab.schema import Results, read_rows
from benchmarks.systems import models, systems
from tests.support.benchmark_rows import CPU, row

DROPLET = CASES[0]
NETWORK = partial(models.model, "shipped")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    """Keep small tensors on one thread, here and in new processes."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def droplet() -> Start:
    return melted.drawn(systems.water(7))


def rows_of(lab) -> dict:
    return {row.impl: row for row in read_rows(lab.results.path("md"))}


def test_simulations_are_measured_from_end_to_end(tmp_path, capfd):
    pytest.importorskip("openmm", reason="OpenMM is not installed")
    options = ["--device", "cpu", "--out", str(tmp_path), "--melted", str(tmp_path / "melted")]
    options += ["--only", "command,ase,openmm-host", "--sampling", "0.01"]
    assert entry.main(["md", "--cases", "21", *options]) == 0
    rows = {row.impl: row for row in read_rows(tmp_path / "md.csv")}
    assert list(rows) == ["command", "command-total", "ase", "openmm-host"]
    assert all(row.gate == "pass" and row.error < 1e-5 for row in rows.values())
    assert rows["command"].ms_p50 < rows["command-total"].ms_p50
    assert "melted 21" in capfd.readouterr().out


@pytest.mark.parametrize("name", ["engine", "ase-verlet", "openmm", "torch-sim"])
def test_our_other_simulations(lab, droplet, tmp_path, name):
    if implementations.missing(name):
        pytest.skip(f"{implementations.missing(name)} is not installed")
    melted._write(tmp_path / "21.npz", droplet, DROPLET.hold)
    runner.run_md(lab, [DROPLET], [name], tmp_path)
    (row,) = read_rows(lab.results.path("md"))
    assert (row.impl, row.gate) == (name, "pass")
    assert row.error < 1e-5


def test_peers_share_one_model(lab, droplet, tmp_path, monkeypatch):
    for name in md.PEERS:
        if implementations.missing(name):
            pytest.skip(f"{implementations.missing(name)} is not installed")
    made = []

    class Counted(torchmd_net.SharedModel):
        def __init__(self, *given) -> None:
            made.append(given)
            super().__init__(*given)

    monkeypatch.setattr(torchmd_net, "SharedModel", Counted)
    melted._write(tmp_path / "21.npz", droplet, DROPLET.hold)
    runner.run_md(lab, [DROPLET], md.PEERS, tmp_path)
    rows = rows_of(lab)
    assert list(rows) == [f"{name}-eager" for name in md.PEERS]
    assert all(row.gate == "pass" and row.error < 1e-4 for row in rows.values())
    assert len(made) == 1


@pytest.mark.parametrize(
    ("seconds", "is_right", "expected"),
    [
        ({"": 0.0, "-graph": 0.01}, {"": True, "-graph": True}, ""),
        ({"": 0.01, "-graph": 0.0}, {"": True, "-graph": True}, "-graph"),
        ({"": 0.0, "-graph": 0.01}, {"": False, "-graph": True}, "-graph"),
    ],
)
def test_peers_run_in_the_fastest_mode_that_is_right(
    droplet, monkeypatch, seconds, is_right, expected
):
    class Fake:
        def __init__(self, _network, _start, _device, mode) -> None:
            self.mode = mode

        def compute(self, _positions) -> None:
            time.sleep(seconds[self.mode])

        def outcome(self, _positions) -> str:
            return self.mode

    class FakeTruth:
        def check(self, mode, _tolerance) -> None:
            if not is_right[mode]:
                raise GateError("energies are off")

    monkeypatch.setattr(torchmd_net, "SharedModel", Fake)
    found = torchmd_net.fastest(NETWORK(), droplet, torch.device("cuda"), FakeTruth())
    assert found.mode == expected


def test_a_peer_that_is_never_right_is_an_error(droplet, monkeypatch):
    def fail(*_given) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torchmd_net, "SharedModel", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        torchmd_net.fastest(NETWORK(), droplet, CPU, None)


def test_a_peer_that_does_not_compile_is_tried_once(droplet, monkeypatch):
    tries = []

    def fail(*_given) -> None:
        tries.append(1)
        raise RuntimeError("does not compile")

    monkeypatch.setattr(torchmd_net, "fastest", fail)
    sharing = torchmd_net.Sharing()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not compile"):
            sharing.model(NETWORK(), droplet, CPU, None)
    assert len(tries) == 1


def test_captured_graphs_follow_into_the_threads_of_openmm(droplet, monkeypatch):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    cudagraph_trees = pytest.importorskip("torch._inductor.cudagraph_trees")
    shared = torchmd_net.SharedModel(NETWORK(), droplet, CPU, "-eager")
    monkeypatch.setattr(shared, "_thread_objects", torchmd_net._thread_objects())
    found = []

    def compute() -> None:
        shared.compute(droplet.system.positions)
        name = torchmd_net.THREAD_OBJECTS[0]
        found.append(getattr(cudagraph_trees.local, name) is shared._thread_objects[name])

    for _ in range(2):
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    assert found == [True, True]


def test_simulations_return_to_their_start(droplet):
    simulator = implementations.OUR_SIMULATORS["ase"](NETWORK(), droplet, CPU)
    simulator.reset()
    simulator.advance(2)
    assert not np.array_equal(simulator.state()[0], droplet.system.positions)
    simulator.reset()
    positions, velocities = simulator.state()
    np.testing.assert_array_equal(positions, droplet.system.positions)
    np.testing.assert_allclose(velocities, droplet.velocities, rtol=1e-12)


def test_openmm_starts_at_the_same_temperature(droplet):
    pytest.importorskip("openmm", reason="OpenMM is not installed")
    simulator = implementations.OUR_SIMULATORS["openmm-host"](NETWORK(), droplet, CPU)
    simulator.reset()
    found = droplet.temperature(simulator.state()[1])
    assert found == pytest.approx(droplet.temperature(droplet.velocities), rel=1e-9)
    atoms = droplet.images()[0]
    assert found == pytest.approx(atoms.get_temperature(), rel=1e-9)


class Slow:
    """A simulator whose steps do nothing."""

    def __init__(self, start: Start) -> None:
        self.start, self.steps, self.resets = start, [], 0

    def reset(self) -> None:
        self.resets += 1
        self.steps = []

    def advance(self, steps: int) -> None:
        self.steps.append(steps)

    def state(self):
        return self.start.system.positions, self.start.velocities


def test_the_clock_is_read_every_hundred_steps_after_a_new_start(droplet):
    simulator = Slow(droplet)
    trial = runner.time_steps(simulator, droplet, CPU, replace(Plan(), seconds=0.0))
    assert simulator.resets == 2
    assert simulator.steps == [100, 100, 100]
    assert trial.interval == pytest.approx(0.05)
    assert len(trial.temperatures) == 3


@pytest.mark.parametrize(("kelvin", "passes"), [(300.0, True), (306.0, True), (330.0, False)])
def test_temperatures_are_checked_in_the_second_half(kelvin, passes):
    temperatures = [1000.0] * 10 + [kelvin] * 10
    if passes:
        runner.check_temperature(temperatures, 0.5, 3993)
        return
    with pytest.raises(GateError, match="the mean temperature is 330"):
        runner.check_temperature(temperatures, 0.5, 3993)


def test_temperatures_of_few_atoms_scatter():
    runner.check_temperature([360.0] * 10, 0.05, 21)
    with pytest.raises(GateError):
        runner.check_temperature([360.0] * 1000, 0.5, 21)
    runner.check_temperature([360.0] * 1000, 0.5, 21, mixes=False)


def test_walls_keep_clusters_together_and_are_not_part_of_the_results():
    pytest.importorskip("openmm", reason="OpenMM is not installed")
    case = next(case for case in CASES if case.name == "charged-21")
    network = models.charged_model(8, repulsion=True)
    start = melted.start_of(case, Path(), CPU, QUICK)
    fast = replace(start, velocities=30 * start.velocities)
    center = start.system.positions.mean(0)
    ends = []
    for begin in (fast, replace(fast, wall=None)):
        simulator = implementations.OUR_SIMULATORS["openmm-host"](network, begin, CPU)
        simulator.reset()
        simulator.advance(60)
        positions = simulator.state()[0]
        ends.append(np.linalg.norm(positions - center, axis=1).max())
        end = melted.moved(start.system, positions)
        assert Truth.of(network, end, CPU).check(simulator.evaluate(end), 1e-5) < 1e-5
    assert case.wall < ends[0] < ends[1]


def test_a_tensornet2_is_simulated_through_openmm(lab, tmp_path, monkeypatch):
    for name in md.CHARGED:
        if implementations.missing(name):
            pytest.skip(f"{implementations.missing(name)} is not installed")
    small = partial(models.charged_model, 8, repulsion=True)
    monkeypatch.setitem(models.MODELS, "repulsive", small)
    models.model.cache_clear()
    (case,) = (case for case in CASES if case.name == "charged-21")
    runner.run_md(lab, [case], md.CHARGED, tmp_path)
    models.model.cache_clear()
    rows = rows_of(lab)
    assert list(rows) == [f"{name}-eager" if name in md.PEERS else name for name in md.CHARGED]
    assert {row.gate for row in rows.values()} == {"pass"}


def test_wrong_forces_have_no_time(lab, droplet, tmp_path, monkeypatch, capfd):
    class Wrong(Slow):
        def evaluate(self, system):
            return Outcome(torch.zeros(1), torch.ones(system.n_atoms, 3))

    simulators = {"ase": lambda _network, start, _device: Wrong(start)}
    monkeypatch.setattr(runner, "OUR_SIMULATORS", simulators)
    melted._write(tmp_path / "21.npz", droplet, DROPLET.hold)
    runner.run_md(lab, [DROPLET], ["ase"], tmp_path)
    row = rows_of(lab)["ase"]
    assert (row.gate, row.ms_p50) == ("fail", None)
    assert row.error > 0.1
    assert "forces are off" in capfd.readouterr().err


def test_wrong_temperatures_have_no_time(lab, droplet, tmp_path, monkeypatch, capfd):
    hot = Start(droplet.system, 2 * droplet.velocities)
    simulators = {"ase": lambda _network, _start, _device: Slow(hot)}
    monkeypatch.setattr(runner, "OUR_SIMULATORS", simulators)
    melted._write(tmp_path / "21.npz", droplet, DROPLET.hold)
    runner.run_md(lab, [DROPLET], ["ase"], tmp_path, replace(QUICK, longest=DROPLET.hold))
    assert rows_of(lab)["ase"].gate == "fail"
    assert "the mean temperature is" in capfd.readouterr().err


def test_the_time_of_all_simulations_is_bounded(lab, tmp_path, capfd):
    lab.budget.total = 0.0
    runner.run_md(lab, [DROPLET], ["engine"], tmp_path)
    assert "the time is up" in capfd.readouterr().err
    assert not lab.results.path("md").exists()


def test_melted_systems_are_kept_if_they_were_melted_for_long_enough(tmp_path):
    first = melted.start_of(DROPLET, tmp_path, CPU, QUICK)
    again = melted.start_of(DROPLET, tmp_path, CPU, QUICK)
    np.testing.assert_array_equal(first.system.positions, again.system.positions)
    np.testing.assert_array_equal(first.velocities, again.velocities)
    assert melted._read(tmp_path / "21.npz", DROPLET.hold) is None
    (tmp_path / "21.npz").write_bytes(b"damaged")
    assert melted._read(tmp_path / "21.npz", 1) is None


def test_melted_boxes_are_repeated():
    small = Case("128", partial(systems.water, 64), 1.0, hold=1, repeats=2, settle=1)
    start = melted.repeated(small.build(), small.repeats)
    system = start.system
    assert system.n_atoms == 8 * 192
    np.testing.assert_allclose(np.diag(system.cell), 8 * 3.104, atol=1e-4)
    assert (system.positions >= 0).all()
    assert (system.positions <= np.diag(system.cell)).all()
    density = system.count_edges(5.0) / system.n_atoms
    assert density == pytest.approx(systems.water(64).count_edges(5.0) / 192)


def test_sizes_of_cases_are_their_names():
    for case in CASES:
        if case.name.isdigit() and int(case.name) < 20_000:
            assert case.build().n_atoms * case.repeats**3 == int(case.name)


def test_the_command_takes_about_six_seconds():
    plan = Plan()
    steps = {case.name: plan.steps(case) for case in CASES}
    assert steps["1000000"] == 40
    assert steps["21"] == 46_100
    assert all(steps[case.name] % plan.log_every(case) == 0 for case in CASES)
    assert min(steps[name] for name in steps if name != "1000000") >= 200


@pytest.mark.parametrize("size", [1029, 3993])
def test_pressure_is_compared_with_volume_from_the_same_grid(size, tmp_path):
    found = [case for case in CASES if case.name.endswith(f"-grid-{size}")]
    assert [case.ensemble for case in found] == ["nvt", "npt"]
    for case in found:
        start = melted.start_of(case, tmp_path, CPU, Plan())
        grams = start.masses.sum() / units.mol
        volume = np.linalg.det(start.system.cell) * 1e-24  # cm^3
        assert start.system.n_atoms == size
        assert grams / volume == pytest.approx(1.0, abs=0.01)
        assert (Plan().steps(case), QUICK.steps(case)) == (10_000, 4)
        assert case.implementations == ("command",)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "case",
    [
        Case("npt-192", partial(systems.water, 64), 1.0, ensemble="npt"),
        Case("2xaspirin", partial(systems.conformers, "aspirin", 2), 1.0, replicas=2),
        Case("random-64", partial(systems.random_box, 64), 1.0, model="random"),
    ],
    ids=lambda case: case.name,
)
@pytest.mark.usefixtures("small_model")
def test_the_command_runs_every_kind_of_case(lab, tmp_path, case):
    runner.run_md(lab, [replace(case, implementations=("command",))], ["command"], tmp_path)
    rows = rows_of(lab)
    assert list(rows) == ["command", "command-total"]
    gate = "pass" if case.model == "shipped" else "unchecked"  # atoms are too close for tables
    assert {row.gate for row in rows.values()} == {gate}
    assert rows["command"].atoms == case.build().n_atoms


def test_a_command_that_fails_says_why(tmp_path, droplet, monkeypatch):
    failed = subprocess.CompletedProcess([], 2, "", "first\nerror: no such GPU\n")
    monkeypatch.setattr(command.subprocess, "run", lambda *_given, **_options: failed)
    with pytest.raises(command.CommandError, match="exit code 2: error: no such GPU"):
        command.run(DROPLET, droplet, CPU, QUICK, tmp_path)


def test_what_is_not_installed_is_skipped(lab, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(implementations, "find_spec", lambda _name: None)
    runner.run_md(lab, [DROPLET], ["torch-sim", "torchmd-net-ase"], tmp_path)
    complaints = capfd.readouterr().err
    assert "torch_sim is not installed" in complaints
    assert "torchmdnet is not installed" in complaints


@pytest.fixture
def simulated(tmp_path):
    """Results of simulations in a folder."""
    times = {"engine": 0.1, "command": 0.2, "ase": 0.4, "ase-verlet": 0.3, "openmm-host": 0.25}
    times |= {"torchmd-net-ase": 4.0, "torchmd-net-openmm-host-graph": 2.0}
    charged = {"engine": 0.3, "openmm": 0.5, "torchmd-net-openmm": 3.0}
    charged |= {"openmm-host": 0.4, "torchmd-net-openmm-host-graph": 2.0}
    made = [row(bench="md", case="192", impl=i, ms=ms, atoms=192) for i, ms in times.items()]
    made.append(row(bench="md", case="npt-1029", impl="command", ms=0.5, atoms=1029))
    made += [row(bench="md", case="charged-21", impl=i, ms=ms) for i, ms in charged.items()]
    Results(tmp_path).add(made)
    return tmp_path


def test_simulations_are_tabulated_as_nanoseconds_per_day(simulated):
    table = tables.simulations(simulated)
    cells = "0.1 | 216 (0.2) | 108 (0.4) | – | 173 (0.25) | – | 144 (0.3)"
    assert f"| 192 | {cells} | 21.6 (2) (openmm-host-graph) | 10.0x |" in table
    assert "| npt-1029 | – | 86.4 (0.5) | – | – | – | – | – | – | – |" in table
    assert table in tables.tables(simulated)


def test_simulations_of_a_tensornet2_are_tabulated_by_platform(simulated):
    table = tables.charged_simulations(simulated)
    assert "| 21 | 0.3 | 0.5 | 0.4 | 3 | 2 | 5.0x | 108 and 21.6 |" in table
    assert len(table.splitlines()) == 5
    assert "charged" not in tables.simulations(simulated)
    assert table in tables.tables(simulated)


def test_simulations_are_drawn(simulated):
    (path,) = figures.draw(simulated)
    assert path.name == "md.svg"
    drawn = path.read_text()
    assert "TorchMD-NET, best route" in drawn
    assert "OpenMM on the GPU" not in drawn


@pytest.mark.gpu
def test_our_simulations_on_a_gpu(gpu_lab, tmp_path):
    plan = replace(Plan(), seconds=0.2, command_seconds=0.0, heating=200, longest=1000)
    runner.run_md(gpu_lab, [CASES[1]], md.OURS, tmp_path, plan)
    rows = rows_of(gpu_lab)
    assert {row.gate for row in rows.values()} == {"pass"}
