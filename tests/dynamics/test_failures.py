"""Failures of simulations: one line that says what to do, and files that are valid."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule

import mlff_triton
from mlff_triton import TensorNetCalculator
from mlff_triton.cli.main import main
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.host_dynamics import HostDynamics
from mlff_triton.dynamics.memory import count_fitting
from mlff_triton.dynamics.outputs import RESTART, outputs_in
from mlff_triton.errors import DeviceMemoryError, InputError, SimulationError
from tests.support.checkpoints import save_tiny_model
from tests.support.springs import Springs

NVE = (Stage("nve", 50),)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def command(tmp_path, model):
    """Run the command in a process of its own; return exit code and stderr."""
    ase.io.write(tmp_path / "ethanol.xyz", molecule("CH3CH2OH"), format="extxyz")

    def run(*arguments, first=""):
        code = f"{first}\nfrom mlff_triton.cli.main import main; main()"
        given = ["md", "ethanol.xyz", "--model", model, "--device", "cpu", *arguments]
        package = str(Path(mlff_triton.__file__).parents[1])
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code, *map(str, given)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": package},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    return run


class Breaks(Springs):
    """Springs that break in a molecule of three atoms, from some evaluation on."""

    def __init__(self, evaluations: int, error: Exception | None = None):
        super().__init__(np.zeros((1, 3)))
        self.left = evaluations
        self.error = error

    def calculate(self, atoms=None, properties=("energy",), system_changes=("positions",)):
        self.anchors = atoms.positions + 0.02
        super().calculate(atoms, properties, system_changes)
        if len(atoms) == 3:
            self.left -= 1
            self.results["forces"][1] = 1.5, 0, 0
        if self.left < 0 and len(atoms) == 3:
            if self.error:
                raise self.error
            self.results["energy"] = np.nan
            self.results["forces"][2] = np.nan


SYSTEMS = "CH3CH2OH", "H2O", "H2O"


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (None, "atom 2 (H) of replica 1, where the force is nan eV/Å"),
        (InputError("bad luck"), "atom 1 (H) of replica 1, where the force is 1.5 eV/Å"),
    ],
)
def test_a_failure_names_the_atom(tmp_path, error, where):
    systems = [molecule(name) for name in SYSTEMS]
    calculator = Breaks(22, error)
    settings = Settings(stages=NVE, every=5)
    simulation = Simulation.start(systems, calculator, settings, tmp_path)
    with pytest.raises(SimulationError) as failure:
        simulation.run()
    text = str(failure.value)
    assert text.startswith(f"the simulation blew up in step 11 at {where} (")
    assert "minimize first, or use a smaller time step" in text
    assert load_restart(tmp_path / RESTART).state.step == 10
    assert len(ase.io.read(tmp_path / "trajectory-001.xyz", index=":")) == 3


def test_a_minimization_that_fails_names_the_atom(tmp_path):
    settings = Settings(stages=NVE, minimize=True)
    simulation = Simulation.start(molecule("H2O"), Breaks(5), settings, tmp_path)
    with pytest.raises(
        SimulationError, match=r"minimization failed in iteration 6 at atom 2 \(H\)"
    ):
        simulation.run()
    assert not load_restart(tmp_path / RESTART).is_prepared


@pytest.mark.filterwarnings("ignore::mlff_triton.dynamics.failures.TimeStepWarning")
def test_a_hot_atom_is_named(tmp_path):
    systems = [molecule(name) for name in SYSTEMS]
    simulation = Simulation.start(
        systems, Breaks(10**6), Settings(stages=NVE, timestep=30, every=1), tmp_path
    )
    with pytest.raises(SimulationError, match=r"at atom 1 \(H\) of replica 1.*temperature"):
        simulation.run()


def test_the_command_reports_a_failure_in_one_line(command, tmp_path):
    atoms = molecule("CH3CH2OH")
    atoms.positions *= 0.6
    ase.io.write(tmp_path / "ethanol.xyz", atoms, format="extxyz")
    code, err = command("--timestep", 5, "--every", 1, "--ensemble", "nve", "--out", "run")
    warning, err = err.splitlines()
    assert code == 2
    assert "warning: a time step of 5 fs is too long" in warning
    assert "the simulation blew up " in err
    assert " at atom " in err
    assert "minimize first, or use a smaller time step; run/restart.npz holds" in err
    last = load_restart(tmp_path / "run" / RESTART).state.step
    assert ase.io.read(tmp_path / "run" / "trajectory.xyz").info["step"] == last


def test_the_command_survives_a_full_disk(command, model, tmp_path, monkeypatch):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))"
    arguments = ["--steps", "40", "--every", "2", "--reactive", "--out"]
    code, err = command(*arguments, "run", first=limit)
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot write run/trajectory.xyz" in err
    snapshot = load_restart(tmp_path / "run" / RESTART)
    assert 0 < snapshot.state.step < 40
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["md", "ethanol.xyz", "--model", str(model), "--device", "cpu", *arguments, "whole"])
    assert not end.value.code
    calculator = TensorNetCalculator(snapshot.recipe["model"], device="cpu")
    assert Simulation.resume(snapshot, calculator, tmp_path / "run").run()
    for name in ("trajectory.xyz", "log.csv"):
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "run" / name).read_bytes() == whole


EXCLUDED = {
    "--friction has no effect without --thermostat langevin": "--thermostat rescaling --friction 1",
    "--thermostat has no effect without": "--ensemble nve --thermostat langevin",
    "--barostat has no effect without --ensemble npt": "--barostat isotropic",
    "--barostat-time has no effect without --ensemble npt": "--barostat-time 500",
    "--compressibility has no effect without --ensemble npt": "--compressibility 1e-6",
    "--pressure has no effect without --ensemble npt": "--ensemble nve --pressure 3",
    "heat_from needs a thermostat": "--ensemble nve --heat-from 10",
    "replicas exchange temperatures in nvt only": "--ensemble nve --replicas 2 --exchange-every 5",
    "npt needs a cell": "--ensemble npt",
    "leave out structure": "--restart run/restart.npz",
    "continue this run in Python": "--restart python/restart.npz",
}


@pytest.mark.parametrize("message", EXCLUDED)
def test_options_that_exclude_each_other(message, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    atoms = molecule("CH3CH2OH")
    ase.io.write("ethanol.xyz", atoms, format="extxyz")
    recipe = {"model": str(model), "device": "cpu", "dtype": "float32"}
    Simulation.start(atoms, Springs(atoms.positions), Settings(), "run", recipe=recipe)
    Simulation.start(atoms, Springs(atoms.positions), Settings(), "python")
    with pytest.raises(SystemExit) as end:
        main(["md", "ethanol.xyz", "--model", str(model), *EXCLUDED[message].split()])
    err = capsys.readouterr().err
    assert (end.value.code, err.count("\n")) == (2, 1)
    assert message in err


class Limited(Springs):
    """Springs of systems that move on a device with memory for some atoms."""

    def __init__(self, limit: int):
        super().__init__(molecule("H2O").positions)
        self.limit = limit

    def dynamics(self, systems):
        limit, taken = self.limit, sum(len(atoms) for atoms in systems)

        class Dynamics(HostDynamics):
            def begin(self, *given, **options):
                if taken > limit:
                    raise DeviceMemoryError("out of memory: use fewer atoms")
                return super().begin(*given, **options)

        return Dynamics(systems, self)


@pytest.mark.parametrize("minimize", [False, True])
@pytest.mark.parametrize("fitting", [1, 4, 6])
def test_the_number_of_replicas_that_fit_is_said(tmp_path, fitting, minimize):
    settings = Settings(stages=NVE, minimize=minimize, temperature=tuple(range(300, 307)))
    simulation = Simulation.start(
        [molecule("H2O")] * 7, Limited(3 * fitting + 2), settings, tmp_path
    )
    with pytest.raises(DeviceMemoryError, match=f"^7 replicas .*: {fitting} would fit"):
        simulation.run()
    assert load_restart(tmp_path / RESTART).state.step == 0


@pytest.mark.parametrize("count", [1, 3])
def test_a_system_that_is_too_large_is_reported_as_such(tmp_path, count):
    simulation = Simulation.start(
        [molecule("H2O")] * count, Limited(2), Settings(stages=NVE), tmp_path
    )
    with pytest.raises(DeviceMemoryError, match="use fewer atoms"):
        simulation.run()


def test_replicas_that_fit_are_found_by_bisection():
    tried = []

    def attempt(count: int) -> None:
        tried.append(count)
        if count > 13:
            raise DeviceMemoryError

    assert count_fitting(attempt, 100) == 13
    assert len(tried) <= 7
    assert max(tried) == 50


@pytest.mark.gpu
def test_replicas_that_do_not_fit_a_gpu(tmp_path):
    """The number that fits is one that runs."""
    calculator = TensorNetCalculator(device="cuda")
    settings = Settings(stages=(Stage("nve", 3),), minimize=True)
    total = torch.cuda.get_device_properties(0).total_memory
    systems = [molecule("C60") for _ in range(500)]
    simulation = Simulation.start(systems, calculator, settings, tmp_path / "all")
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved() + 2**30
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        with pytest.raises(DeviceMemoryError, match=r"^500 replicas .*: \d+ would fit") as failure:
            simulation.run()
        count = int(str(failure.value).split(": ")[1].split()[0])
        assert 1 < count < 500
        del simulation, failure  # and the memory that they hold
        gc.collect()
        fewer = Simulation.start(systems[:count], calculator, settings, tmp_path / "fewer")
        assert fewer.run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(outputs_in(tmp_path / "fewer")) == 2 * count + 1
