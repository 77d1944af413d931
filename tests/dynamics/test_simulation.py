"""The molecular-dynamics driver: physics, files, exact restarts."""

from __future__ import annotations

import io
import resource
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rich.console import Console

from mlff_triton import TensorNet, TensorNetCalculator, TensorNetConfig
from mlff_triton._common import progress
from mlff_triton.dynamics import (
    Settings,
    Simulation,
    Stage,
    draw_summary,
    load_restart,
    read_structure,
    report,
    stages_of,
)
from mlff_triton.dynamics.integrators import make_integrator
from mlff_triton.dynamics.outputs import LOG, RESTART, SUMMARY, TRAJECTORY, RecordFile
from mlff_triton.dynamics.preparation import draw_momenta, minimize
from mlff_triton.dynamics.summary import StageRecord, energy_drift, read_log
from mlff_triton.errors import InputError, OutputError, SimulationError


class Springs(Calculator):
    """Every atom on a spring of its own: exactly solvable, and fast."""

    implemented_properties = ("energy", "forces")
    stiffness = 10.0  # eV/Å^2

    def __init__(self, anchors):
        super().__init__()
        self.anchors = np.array(anchors)

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)):
        super().calculate(atoms, properties, system_changes)
        stretch = self.atoms.positions - self.anchors
        self.results = {
            "energy": 0.5 * self.stiffness * float((stretch**2).sum()),
            "forces": -self.stiffness * stretch,
        }


class FailsAfter(Springs):
    """Gives another result, or raises, from a given evaluation on."""

    def __init__(self, anchors, evaluations, energy):
        super().__init__(anchors)
        self.left = evaluations
        self.energy = energy

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)):
        super().calculate(atoms, properties, system_changes)
        self.left -= 1
        if self.left < 0:
            if isinstance(self.energy, Exception):
                raise self.energy
            self.results["energy"] = self.energy


@pytest.fixture(scope="module")
def tiny_model():
    torch.manual_seed(0)
    return TensorNet(
        TensorNetConfig(elements=(1, 6, 7, 8), hidden_channels=16, num_layers=1, num_rbf=8)
    )


def water_box():
    first, second = molecule("H2O"), molecule("H2O")
    second.positions += 2.5
    box = first + second
    box.set_cell([6.0, 6.5, 7.0])
    box.set_pbc(True)
    return box


def contents(directory):
    return (directory / TRAJECTORY).read_bytes(), (directory / LOG).read_bytes()


def stop_at(simulation, step):
    return lambda: simulation.step >= step


def assert_same_state(one, other):
    """Two restart files agree bit for bit."""
    with np.load(one) as a, np.load(other) as b:
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# Settings and structures


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a positive number, not -1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"timestep": 0.0}, "timestep"),
        ({"friction": float("inf")}, "friction"),
        ({"pressure": float("nan")}, "pressure"),
        ({"every": 0}, "every"),
        ({"seed": -1}, "seed"),
        ({"stages": ()}, "at least one stage"),
    ],
)
def test_settings_refuse_nonsense(values, message):
    with pytest.raises(InputError, match=message):
        Settings(**values)


def test_stages_refuse_nonsense():
    with pytest.raises(InputError, match="'nph' is unknown: use one of nve, nvt, npt"):
        Stage("nph", 10)
    with pytest.raises(InputError, match="at least one step"):
        Stage("nve", 0)
    with pytest.raises(InputError, match="2 ensembles and 3 step counts"):
        stages_of(["nvt", "nve"], [1, 2, 3])
    assert stages_of(["nvt", "nve"], [5]) == (Stage("nvt", 5), Stage("nve", 5))


def test_settings_know_the_clock():
    settings = Settings(stages=(Stage("nvt", 30), Stage("nve", 25)), every=20)
    assert [settings.span_of(step).label for step in (0, 30, 31, 55)] == [
        "1-nvt",
        "1-nvt",
        "2-nve",
        "2-nve",
    ]
    assert [step for step in range(56) if settings.is_due(step)] == [0, 20, 30, 40, 55]
    assert Settings.from_dict(settings.to_dict()) == settings


def test_the_shipped_structure_is_a_peptide_in_water():
    atoms = read_structure("alanine-dipeptide-water")
    assert atoms.get_chemical_formula() == "C6H108N2O50"
    assert not atoms.pbc.any()
    waters = np.arange(22, 166).reshape(-1, 3)
    assert (atoms.numbers[waters] == [8, 1, 1]).all()
    bonds = np.linalg.norm(atoms.positions[waters[:, 1:]] - atoms.positions[waters[:, :1]], axis=2)
    assert (abs(bonds - 0.957) < 0.002).all()
    distances = atoms.get_all_distances() + 9 * np.eye(166)
    assert distances.min() > 0.9


PDB_ATOM = "ATOM      1  O   HOH A   1       1.000   2.000   3.000  1.00  0.00           O  \n"


@pytest.mark.parametrize(
    ("text", "pbc"),
    [
        (PDB_ATOM, False),
        ("CRYST1   10.000   11.000   12.000  90.00  90.00  90.00 P 1           1\n", True),
        ("CRYST1    1.000    1.000    1.000  90.00  90.00  90.00 P 1           1\n", False),
        ("MODEL        1\n", False),
    ],
)
def test_pdb_cells(tmp_path, text, pbc):
    path = tmp_path / "a.pdb"
    path.write_text(text + PDB_ATOM + ("ENDMDL\n" if "MODEL" in text else "") + "END\n")
    atoms = read_structure(path)
    assert atoms.pbc.all() == atoms.pbc.any() == pbc
    assert atoms.cell.rank == (3 if pbc else 0)


def test_structures_keep_only_what_matters(tmp_path):
    atoms = molecule("OH")
    atoms.info |= {"charge": -1, "name": "hydroxide"}
    atoms.set_masses([16.0, 2.0])
    atoms.set_momenta(np.ones((2, 3)))
    ase.io.write(tmp_path / "a.xyz", atoms, format="extxyz")
    ase.io.write(tmp_path / "a.xyz", atoms, format="extxyz", append=True)
    read = read_structure(tmp_path / "a.xyz")
    assert read.info == {"charge": -1}
    assert sorted(read.arrays) == ["masses", "numbers", "positions"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nan.xyz", "1\n\nH 0 nan 0\n", "the position of atom 0 is NaN"),
        ("none.xyz", "0\n\n", "contains no atoms"),
        ("empty.xyz", "", "cannot be read as a structure|contains no atoms"),
        ("bad.xyz", "two\n", "cannot be read as a structure"),
        ("odd.thing", "what\n", "cannot be read as a structure"),
        ("move.xyz", "1\nProperties=species:S:1:pos:R:3:move_mask:L:1\nH 0 0 0 F\n", "constraints"),
    ],
)
def test_bad_structures_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_structure(tmp_path / name)
    with pytest.raises(InputError, match="there is no structure"):
        read_structure(tmp_path / "absent.xyz")


# Physics


@pytest.mark.parametrize("name", ["CH3CH2OH", "CO2", "H2", "H"])
def test_momenta_are_at_rest_as_a_whole(name):
    atoms = molecule(name) if name != "H" else Atoms("H")
    draw_momenta(atoms, 300, np.random.default_rng(1))
    assert atoms.get_kinetic_energy() > 0
    if len(atoms) > 1:
        np.testing.assert_allclose(atoms.get_momenta().sum(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(atoms.get_angular_momentum(), 0, atol=1e-12)


def test_momenta_have_the_temperature():
    atoms = molecule("CH3CH2OH")
    rng = np.random.default_rng(2)
    energies = []
    for _ in range(2000):
        draw_momenta(atoms, 300, rng)
        energies.append(atoms.get_kinetic_energy())
    freedom = 3 * len(atoms) - 6
    assert np.mean(energies) == pytest.approx(0.5 * freedom * units.kB * 300, rel=0.02)
    assert np.var(energies) == pytest.approx(0.5 * freedom * (units.kB * 300) ** 2, rel=0.15)


def test_minimization_finds_the_anchors():
    atoms = molecule("CH3CH2OH")
    atoms.calc = Springs(atoms.positions)
    atoms.positions += 0.1
    *_, last = minimize(atoms)
    assert last.converged
    np.testing.assert_allclose(atoms.positions, atoms.calc.anchors, atol=0.01)


def test_nvt_reaches_the_temperature_and_counts_its_heat():
    atoms = Atoms("H8C8", np.random.default_rng(0).uniform(0, 5, (16, 3)))
    atoms.calc = Springs(atoms.positions)
    rng = np.random.default_rng(3)
    settings = Settings(temperature=400, friction=20, timestep=1)
    draw_momenta(atoms, 50, rng)
    integrator = make_integrator("nvt", atoms, settings, rng)
    start = integrator.conserved_energy()
    kinetic, potential = [], []
    for step in range(4000):
        integrator.step()
        if step > 500:
            kinetic.append(atoms.get_kinetic_energy())
            potential.append(atoms.get_potential_energy())
    expected = 1.5 * 16 * units.kB * 400
    assert np.mean(kinetic) == pytest.approx(expected, rel=0.05)
    assert np.mean(potential) == pytest.approx(expected, rel=0.05)
    assert abs(integrator.heat) > 0.5
    assert integrator.conserved_energy() == pytest.approx(start, abs=0.02 * expected)


@pytest.mark.parametrize(("ensemble", "tolerance"), [("nve", 2e-3), ("npt", 2e-3)])
def test_energy_is_conserved(ensemble, tolerance):
    atoms = bulk("Cu", cubic=True) * 2
    atoms.calc = EMT()
    settings = Settings(timestep=2)
    draw_momenta(atoms, 300, np.random.default_rng(4))
    volume = atoms.get_volume()
    integrator = make_integrator(ensemble, atoms, settings, np.random.default_rng(5))
    start = integrator.conserved_energy()
    for _ in range(100):
        integrator.step()
    assert integrator.conserved_energy() == pytest.approx(start, abs=tolerance)
    assert (atoms.get_volume() != volume) == (ensemble == "npt")


# Exact restarts

PLANS = {
    "nve": Settings(stages=(Stage("nve", 40),), every=8, minimize=True),
    "nvt": Settings(stages=(Stage("nvt", 40),), every=8),
    "npt": Settings(stages=(Stage("npt", 40),), every=8, pressure=100.0),
    "all": Settings(
        stages=(Stage("nvt", 15), Stage("npt", 15), Stage("nve", 10)), every=6, minimize=True
    ),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("stops", [(0,), (16,), (13, 22), (15, 30)], ids=str)
def test_a_continued_run_equals_an_unbroken_one(tmp_path, tiny_model, plan, stops):
    box = water_box()
    box.info["charge"] = 1
    settings = PLANS[plan]
    unbroken = Simulation.start(
        box, TensorNetCalculator(tiny_model, device="cpu"), settings, tmp_path / "unbroken"
    )
    assert unbroken.run()

    folder = tmp_path / "broken"
    broken = Simulation.start(box, TensorNetCalculator(tiny_model, device="cpu"), settings, folder)
    for stop in stops:
        assert not broken.run(should_stop=stop_at(broken, stop))
        if stop:
            assert ase.io.read(folder / TRAJECTORY).info["step"] == broken.step == stop
        calculator = TensorNetCalculator(tiny_model, device="cpu")
        broken = Simulation.resume(load_restart(folder / RESTART), calculator, folder)
    assert broken.run()

    assert contents(folder) == contents(tmp_path / "unbroken")
    assert_same_state(folder / RESTART, tmp_path / "unbroken" / RESTART)
    frames = ase.io.read(folder / TRAJECTORY, index=":")
    assert [frame.info["step"] for frame in frames] == [
        step for step in range(41) if settings.is_due(step)
    ]


@given(stop=st.integers(1, 29), every=st.integers(1, 40), seed=st.integers(0, 99))
@hypothesis_settings(max_examples=15, deadline=None)
def test_any_interruption_can_be_continued(tmp_path_factory, stop, every, seed):
    folder = tmp_path_factory.mktemp("run")
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nvt", 20), Stage("nve", 10)), every=every, seed=seed)
    unbroken = Simulation.start(atoms, Springs(atoms.positions), settings, folder / "a")
    unbroken.run()
    broken = Simulation.start(atoms, Springs(atoms.positions), settings, folder / "b")
    broken.run(should_stop=stop_at(broken, stop))
    snapshot = load_restart(folder / "b" / RESTART)
    assert Simulation.resume(snapshot, Springs(atoms.positions), folder / "b").run()
    assert contents(folder / "a") == contents(folder / "b")


def test_what_a_killed_run_wrote_after_its_restart_is_cut_off(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 20),), every=5)
    simulation = Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a")
    simulation.run(should_stop=stop_at(simulation, 10))
    for name in (TRAJECTORY, LOG):
        with (tmp_path / "a" / name).open("a") as file:
            file.write("9\nhalf a fra")
    snapshot = load_restart(tmp_path / "a" / RESTART)
    Simulation.resume(snapshot, Springs(atoms.positions), tmp_path / "a").run()
    Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "b").run()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_complete_run_stays_as_it_is(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 7),), every=5)
    Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path).run()
    before = contents(tmp_path)
    simulation = Simulation.resume(
        load_restart(tmp_path / RESTART), Springs(atoms.positions), tmp_path
    )
    assert simulation.run()
    assert contents(tmp_path) == before


def test_bad_restarts_are_refused(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 7),), every=5)
    Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path).run()
    whole = (tmp_path / RESTART).read_bytes()
    damaged = tmp_path / "damaged.npz"
    for blob in (b"", b"text", whole[:-100], whole[:500] + b"\0" * 100 + whole[600:]):
        damaged.write_bytes(blob)
        with pytest.raises(InputError, match="not a valid restart file"):
            load_restart(damaged)
    np.save(tmp_path / "array.npy", np.ones(3))
    for name, message in (("array.npy", "not a valid"), ("absent.npz", "there is no restart file")):
        with pytest.raises(InputError, match=message):
            load_restart(tmp_path / name)
    (tmp_path / TRAJECTORY).write_text("")
    with pytest.raises(OutputError, match="restore the original"):
        Simulation.resume(load_restart(tmp_path / RESTART), Springs(atoms.positions), tmp_path)


# Files


def test_the_trajectory_holds_energy_momenta_and_forces(tmp_path, tiny_model):
    settings = Settings(stages=(Stage("nvt", 12),), every=5)
    simulation = Simulation.start(
        water_box(), TensorNetCalculator(tiny_model, device="cpu"), settings, tmp_path
    )
    simulation.run()
    frames = ase.io.read(tmp_path / TRAJECTORY, index=":")
    assert [frame.info["step"] for frame in frames] == [0, 5, 10, 12]
    last = frames[-1]
    np.testing.assert_allclose(last.positions, simulation.atoms.positions, atol=1e-8)
    np.testing.assert_allclose(last.get_momenta(), simulation.atoms.get_momenta(), atol=1e-8)
    np.testing.assert_allclose(last.get_forces(), simulation.atoms.get_forces(), atol=1e-8)
    assert last.get_potential_energy() == pytest.approx(simulation.atoms.get_potential_energy())
    assert last.info["time_ps"] == pytest.approx(0.006)
    rows = (tmp_path / LOG).read_text().splitlines()
    assert rows[0].startswith("step,time_ps,stage,temperature_K,potential_eV,kinetic_eV,total_eV")
    assert [row.split(",")[0] for row in rows[1:]] == ["0", "5", "10", "12"]
    assert float(rows[1].split(",")[8]) == pytest.approx(6.0 * 6.5 * 7.0)


def test_a_record_that_does_not_fit_leaves_nothing(tmp_path):
    file = RecordFile(tmp_path / "log", 0)
    file.append("whole\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OutputError, match="the disk is full"):
            file.append("too long a record\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.path.read_text() == "whole\n"
    file.append("next\n")
    assert file.path.read_text() == "whole\nnext\n"


def test_directories_are_respected(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 4),), every=2)
    Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a").run()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    before = contents(tmp_path / "a")
    with pytest.raises(OutputError, match="is not empty"):
        Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a")
    with pytest.raises(OutputError, match="is a file"):
        Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a" / LOG)
    with pytest.raises(OutputError, match="cannot write"):
        Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a" / LOG / "sub")
    npt = Settings(stages=(Stage("npt", 2),))
    with pytest.raises(InputError, match="periodic in three directions"):
        Simulation.start(atoms, Springs(atoms.positions), npt, tmp_path / "a", overwrite=True)
    assert contents(tmp_path / "a") == before
    again = Simulation.start(
        atoms, Springs(atoms.positions), settings, tmp_path / "a", overwrite=True
    )
    again.run()
    assert contents(tmp_path / "a") == before
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert not [path for path in (tmp_path / "a").iterdir() if path.name.startswith(".")]


# Failures


@pytest.mark.parametrize(
    "energy", [float("nan"), float("inf"), InputError("the position of atom 0 is NaN")]
)
def test_a_failure_names_the_step_and_leaves_a_restart(tmp_path, energy):
    atoms = molecule("CH3CH2OH")
    calculator = FailsAfter(atoms.positions, 13, energy)
    settings = Settings(stages=(Stage("nve", 50),), every=5)
    simulation = Simulation.start(atoms, calculator, settings, tmp_path)
    with pytest.raises(
        SimulationError, match=r"blew up in step 13 .*smaller time step; .*restart\.npz"
    ):
        simulation.run()
    assert load_restart(tmp_path / RESTART).step == 10
    assert len(ase.io.read(tmp_path / TRAJECTORY, index=":")) == 3


def test_a_hot_simulation_is_stopped(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 500),), timestep=30, every=1)
    simulation = Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path)
    with pytest.raises(SimulationError, match="blew up in step"):
        simulation.run()
    frames = ase.io.read(tmp_path / TRAJECTORY, index=":")
    assert all(frame.get_temperature() <= 13_000 for frame in frames)


def test_an_unsound_energy_writes_nothing(tmp_path):
    atoms = molecule("CH3CH2OH")
    calculator = FailsAfter(atoms.positions, 0, float("nan"))
    with pytest.raises(InputError, match="check its geometry"):
        Simulation.start(atoms, calculator, Settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Summary


def test_drift_is_the_slope_of_least_squares():
    rng = np.random.default_rng(6)
    time = np.linspace(1, 3, 50)
    total = -1000 + 0.3 * time + 0.01 * rng.standard_normal(50)
    (slope, _), covariance = np.polyfit(time, total / 10, 1, cov=True)
    drift = energy_drift(StageRecord("1-nve", time, time, total, total), n_atoms=10)
    assert drift.slope == pytest.approx(slope)
    assert drift.error == pytest.approx(np.sqrt(covariance[0, 0]))
    short = StageRecord("1-nve", time[:2], time[:2], total[:2], total[:2])
    assert energy_drift(short, n_atoms=10) is None


@pytest.mark.parametrize("terminal", [True, False])
def test_report_and_picture(tmp_path, monkeypatch, terminal):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nvt", 20), Stage("nve", 20)), every=5, minimize=True)
    simulation = Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path)
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100)
    with report.Reporter(console, settings, simulation.step) as reporter:
        simulation.run(reporter)
    console.print(report.summary_table(simulation, reporter))
    shown = text.getvalue()
    for expected in ("ns/day", "eV", " K", "2-nve", "eV/atom/ps", "largest force 0.000 eV/Å"):
        assert expected in shown
    assert ("2-nve: step 40 of 40" in shown) == (not terminal)

    draw_summary(tmp_path, len(atoms))
    assert (tmp_path / SUMMARY).read_bytes().startswith(b"\x89PNG")
    assert [record.label for record in read_log(tmp_path / LOG)] == ["1-nvt", "2-nve"]


def test_package_data_is_where_the_build_looks():
    import mlff_triton

    assert list((Path(mlff_triton.__file__).parent / "structures").glob("*.xyz"))
