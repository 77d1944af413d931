"""Several systems in one run, each as if alone and with its own files; settings of systems."""

from __future__ import annotations

import resource

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.outputs import RESTART, outputs_in
from mlff_triton.dynamics.systems import repartition_masses
from mlff_triton.errors import InputError, OutputError
from tests.support.springs import Springs, stop_at

NVT = (Stage("nvt", 30),)


class Apart(Springs):
    """Springs for any molecule, to its own first positions."""

    def __init__(self):
        super().__init__(np.zeros((1, 3)))
        self.first = {}

    def calculate(self, atoms=None, properties=("energy",), system_changes=("positions",)):
        self.anchors = self.first.setdefault(len(atoms), atoms.positions.copy())
        super().calculate(atoms, properties, system_changes)


def molecules() -> list[Atoms]:
    return [molecule("CH3CH2OH"), molecule("H2O"), molecule("CH3CH2OH")]


def contents(folder):
    return {
        path.name: path.read_bytes()
        for path in outputs_in(folder)
        if path.suffix in (".xyz", ".csv", ".dcd", ".xtc", ".pdb")
    }


@pytest.mark.parametrize("thermostat", ["langevin", "rescaling"])
def test_the_first_system_of_many_moves_as_if_alone(tmp_path, thermostat):
    settings = Settings(stages=NVT, every=10, thermostat=thermostat)
    Simulation.start(molecules(), Apart(), settings, tmp_path / "all").run()
    Simulation.start(molecules()[0], Apart(), settings, tmp_path / "one").run()
    files = contents(tmp_path / "all")
    assert sorted(files) == [
        f"{stem}-{k:03d}.{suffix}"
        for stem, suffix in (("log", "csv"), ("trajectory", "xyz"))
        for k in range(3)
    ]
    alone = contents(tmp_path / "one")
    assert files["log-000.csv"] == alone["log.csv"]
    assert files["trajectory-000.xyz"] == alone["trajectory.xyz"]
    assert files["log-002.csv"] != files["log-000.csv"]  # another random stream


@pytest.mark.parametrize("block", [1, 7, 100])
def test_blocks_change_nothing(tmp_path, block):
    settings = Settings(stages=(*NVT, Stage("nve", 20)), every=10, log_every=4)
    for name, size in (("a", block), ("b", None)):
        Simulation.start(molecules(), Apart(), settings, tmp_path / name).run(block=size)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("trajectory", ["xyz", "dcd", "xtc"])
@pytest.mark.parametrize("stop", [7, 12, 20])
def test_exchanges_continue_exactly(tmp_path, trajectory, stop):
    settings = Settings(
        stages=NVT,
        temperature=(300.0, 301.0, 302.0),
        every=10,
        log_every=5,
        exchange_every=4,
        trajectory=trajectory,
    )
    unbroken, folder = tmp_path / "unbroken", tmp_path / "broken"
    whole = Simulation.start(molecules(), Apart(), settings, unbroken)
    assert whole.run()
    assert whole.temperatures != settings.temperature
    broken = Simulation.start(molecules(), Apart(), settings, folder)
    assert not broken.run(should_stop=stop_at(broken, stop), block=1)
    calculator = Apart()
    calculator.first = {len(atoms): atoms.positions for atoms in molecules()}
    assert Simulation.resume(load_restart(folder / RESTART), calculator, folder).run()
    assert contents(folder) == contents(unbroken)


def test_binary_trajectories_come_with_a_topology(tmp_path):
    settings = Settings(stages=NVT, every=10, trajectory="dcd")
    Simulation.start(molecule("H2O"), Apart(), settings, tmp_path).run()
    assert sorted(contents(tmp_path)) == ["log.csv", "topology.pdb", "trajectory.dcd"]
    assert ase.io.read(tmp_path / "topology.pdb").get_chemical_formula() == "H2O"


def test_heating_rises_linearly(tmp_path):
    settings = Settings(stages=NVT, heat_from=10.0, friction=5000.0, every=1, timestep=0.1)
    atoms = molecule("C60")
    Simulation.start(atoms, Apart(), settings, tmp_path).run()
    rows = (tmp_path / "log.csv").read_text().splitlines()[1:]
    kelvin = [float(row.split(",")[4]) for row in rows]
    slope = np.polyfit(np.arange(len(kelvin)), kelvin, 1)[0]
    assert slope == pytest.approx(290 / 30, rel=0.3)
    assert kelvin[0] < 30


def test_heavy_hydrogen(tmp_path):
    atoms = molecule("CH3CH2OH")
    total = atoms.get_masses().sum()
    repartition_masses(atoms, 3.0)
    masses = dict(zip(atoms.get_chemical_symbols(), atoms.get_masses(), strict=True))
    assert masses["H"] == 3.0
    assert atoms.get_masses().sum() == pytest.approx(total)
    carbons = sorted(atoms.get_masses()[atoms.numbers == 6])
    assert carbons == pytest.approx([12.011 - 3 * 1.992, 12.011 - 2 * 1.992])
    settings = Settings(stages=NVT, hydrogen_mass=3.0, every=30)
    Simulation.start(molecule("CH3CH2OH"), Apart(), settings, tmp_path).run()
    last = ase.io.read(tmp_path / "trajectory.xyz")
    np.testing.assert_allclose(last.get_masses(), atoms.get_masses(), rtol=1e-7)


def test_settings_that_do_not_suit_the_systems(tmp_path):
    water, pair = molecule("H2O"), molecule("H2")
    for systems, settings, message in (
        ([], Settings(), "no structures"),
        ([water] * 2, Settings(temperature=(300.0,) * 3), "2 replicas need 2 temperatures"),
        (water, Settings(exchange_every=5), "two or more are needed"),
        ([water, pair], Settings(thermostat="rescaling"), "needs three degrees of freedom"),
        (pair, Settings(hydrogen_mass=3.0), "needs other atoms"),
    ):
        with pytest.raises(InputError, match=message):
            Simulation.start(systems, Apart(), settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_leaves_a_valid_restart(tmp_path):
    settings = Settings(stages=(Stage("nvt", 200),), every=10)
    simulation = Simulation.start(molecule("CH3CH2OH"), Apart(), settings, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, hard))
    try:
        with pytest.raises(OutputError, match=r"trajectory\.xyz"):
            simulation.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    snapshot = load_restart(tmp_path / RESTART)
    assert 0 < snapshot.state.step < 200
    calculator = Apart()
    calculator.first = {9: molecule("CH3CH2OH").positions}
    assert Simulation.resume(snapshot, calculator, tmp_path).run()
    frames = ase.io.read(tmp_path / "trajectory.xyz", index=":")
    assert [frame.info["step"] for frame in frames] == list(range(0, 201, 10))
