"""Runs that fall apart, whatever the thermostat makes of them, and chemistry that is not that."""

from __future__ import annotations

from dataclasses import replace

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator, all_changes

from mlff_triton import TensorNetCalculator
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.bonds import Bonds
from mlff_triton.dynamics.failures import TimeStepWarning, warn_of_time_step
from mlff_triton.dynamics.outputs import RESTART
from mlff_triton.dynamics.systems import state_of
from mlff_triton.errors import SimulationError
from tests.support.springs import Springs

LANGEVIN = (Stage("nvt", 200),)


class Drifting(Calculator):
    """Constant forces on some atoms, with the energy that belongs to them."""

    implemented_properties = ("energy", "forces")

    def __init__(self, forces: dict[int, tuple[float, float, float]], excess: float = 0.0):
        super().__init__()
        self.given, self.excess, self.calls = forces, excess, 0

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)):
        super().calculate(atoms, properties, system_changes)
        forces = np.zeros((len(atoms), 3))
        for atom, force in self.given.items():
            forces[atom] = force
        self.calls += 1
        energy = self.excess * self.calls - float((forces * atoms.positions).sum())
        self.results = {"energy": energy, "forces": forces}


def start(folder, atoms, calculator, **options):
    options = {"stages": LANGEVIN, "every": 5, "temperature": 1.0, "friction": 50.0} | options
    return Simulation.start(atoms, calculator, Settings(**options), folder)


def line_of(simulation) -> str:
    with pytest.raises(SimulationError) as failure:
        simulation.run()
    text = str(failure.value)
    assert "\n" not in text
    assert load_restart(simulation.restart_path).state.step == simulation._state.step
    return text


@pytest.mark.parametrize(
    "options", [{}, {"thermostat": "rescaling", "friction": 5.0}, {"temperature": 300.0}]
)
def test_a_bond_that_is_gone_ends_the_run(tmp_path, options):
    water = molecule("H2O")
    text = line_of(start(tmp_path, water, Drifting({1: (0, 0.5, 0)}), **options))
    assert "the simulation blew up by step " in text
    assert "bond to atom 1 (H) has broken" in text or "bond to atom 0 (O) has broken" in text
    assert "use --reactive if bonds may break" in text
    frames = ase.io.read(tmp_path / "trajectory.xyz", index=":")
    assert len(frames) > 1
    assert frames[-1].get_distance(0, 1) < 2.0


def test_a_run_of_reactions_goes_on_from_its_last_frame(tmp_path):
    calculator = Drifting({1: (0, 0.5, 0)})
    line_of(start(tmp_path, molecule("H2O"), calculator))
    snapshot = load_restart(tmp_path / RESTART)
    assert 0 < snapshot.state.step < 200
    settings = replace(snapshot.settings, reactive=True)
    simulation = Simulation.resume(replace(snapshot, settings=settings), calculator, tmp_path)
    assert simulation.run()


def test_bonds_of_the_start_are_kept_by_restarts(tmp_path):
    """A continued run still knows of bonds that have broken since."""
    simulation = start(tmp_path, molecule("CH3CH2OH"), Springs(molecule("CH3CH2OH").positions))
    assert simulation.run()
    saved = load_restart(tmp_path / RESTART).bonds
    for name in Bonds._fields:
        np.testing.assert_array_equal(getattr(saved, name), getattr(simulation.bonds, name))
    assert len(saved.pairs) == 8


def moved(systems, atom, position):
    state = state_of(systems)
    state.positions[atom] = position
    return state


def test_a_proton_may_move_to_another_molecule():
    first, second = molecule("H2O"), molecule("H2O")
    second.positions += [0, 2.8, 0]
    both = first + second
    bonds = Bonds.of([both])
    assert len(bonds.pairs) == 4
    beside = second.positions[0] + [0, 0, 1.0]
    assert not len(bonds.broken(moved([both], 1, beside), [both]))
    assert len(bonds.broken(moved([both], 1, [0, 20.0, 0]), [both])) == 1
    heavy = Bonds.of([molecule("CH3CH2OH")])
    state = moved([molecule("CH3CH2OH")], 2, [9.0, 9.0, 9.0])  # oxygen with two bonds
    assert len(heavy.broken(state, [molecule("CH3CH2OH")])) == 2


def test_bonds_of_crystals_and_replicas():
    """Bonds reach through the faces of a cell; those of metals and salts are not watched."""
    diamond = bulk("C", "diamond", a=3.567)
    bonds = Bonds.of([molecule("H2O"), diamond, molecule("H2O")])
    assert bonds.pairs.max() == 7
    assert len(bonds.pairs) == 2 + 4 + 2
    systems = [molecule("H2O"), diamond, molecule("H2O")]
    np.testing.assert_allclose(
        bonds.lengths(state_of(systems), systems)[2:6], 3.567 * 3**0.5 / 4, rtol=1e-9
    )
    for atoms in (
        bulk("Cu"),
        bulk("NaCl", "rocksalt", a=5.64),
        Atoms("Ar2", [[0, 0, 0], [0, 0, 2]]),
    ):
        assert not len(Bonds.of([atoms]).pairs)


def test_energy_that_nobody_gives_ends_the_run(tmp_path):
    calculator = Drifting({}, excess=0.1)
    text = line_of(start(tmp_path, bulk("Cu", cubic=True), calculator, temperature=300.0))
    assert "the conserved energy has drifted by " in text
    assert "eV per atom" in text


@pytest.mark.parametrize("count", [1, 3])
def test_atoms_that_come_too_close_end_the_run(tmp_path, count):
    """They are noticed between rows of the log, too."""
    pair = Atoms("Cu2", [[0, 0, 0], [0, 0, 3.0]], masses=[1.0, 1.0])
    forces = {0: (0, 0, 4.0), 1: (0, 0, -4.0)} if count == 1 else {}

    class Attracting(Drifting):
        def calculate(self, atoms=None, *given, **options):
            apart = atoms.get_distance(0, 1) if len(atoms) == 2 else 9.0
            self.given = {0: (0, 0, 4.0), 1: (0, 0, -4.0)} if apart < 3.1 else {}
            super().calculate(atoms, *given, **options)

    systems = [Atoms("Cu", [[0, 0, 0]])] * (count - 1) + [pair]
    simulation = Simulation.start(
        systems,
        Attracting(forces),
        Settings(stages=(Stage("nve", 200),), every=200, temperature=1.0),
        tmp_path,
    )
    text = line_of(simulation)
    assert "atoms 0 and 1 are only 0." in text
    assert f"at atom {0}" in text
    assert ("of replica 2" in text) == (count == 3)
    assert "blew up in step " in text


def test_long_time_steps_are_warned_of():
    water, light = molecule("H2O"), 2.01
    heavy = water.copy()
    heavy.set_masses([12.0, 3.0, 3.0])
    for atoms, timestep, message in (
        (water, light, "use at most 2 fs.*--hydrogen-mass"),
        (heavy, 4.0, "3 amu.*use at most 3.5 fs"),
        (bulk("W"), 30.0, "184 amu"),
    ):
        with pytest.warns(TimeStepWarning, match=message):
            warn_of_time_step([atoms], timestep)
    for atoms, timestep in ((water, 2.0), (heavy, 3.4), (bulk("W"), 5.0), (bulk("Cu"), 5.0)):
        warn_of_time_step([bulk("W"), atoms], timestep)


@pytest.mark.parametrize("timestep", [3.0, 5.0, 50.0])
@pytest.mark.parametrize("thermostat", ["langevin", "rescaling"])
@pytest.mark.filterwarnings("ignore::mlff_triton.dynamics.failures.TimeStepWarning")
def test_long_time_steps_end_in_an_error(tmp_path, thermostat, timestep):
    settings = Settings(
        stages=(Stage("nvt", 400),), timestep=timestep, thermostat=thermostat, every=100
    )
    calculator = TensorNetCalculator(device="cpu")
    simulation = Simulation.start(molecule("CH3CH2OH"), calculator, settings, tmp_path)
    with pytest.raises(SimulationError, match=r"the simulation blew up .*use a smaller time step"):
        simulation.run()


@pytest.mark.gpu
@pytest.mark.parametrize("timestep", [3.0, 5.0, 50.0])
@pytest.mark.filterwarnings("ignore::mlff_triton.dynamics.failures.TimeStepWarning")
def test_long_time_steps_end_in_an_error_on_a_gpu(tmp_path, timestep):
    settings = Settings(stages=(Stage("nvt", 2000),), timestep=timestep, every=100)
    calculator = TensorNetCalculator(device="cuda")
    simulation = Simulation.start(molecule("CH3CH2OH"), calculator, settings, tmp_path)
    with pytest.raises(SimulationError, match=r"the simulation blew up .*use a smaller time step"):
        simulation.run()
