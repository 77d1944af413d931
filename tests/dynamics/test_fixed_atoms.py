"""Simulations with fixed atoms: what stays, what counts, and what is refused."""

from __future__ import annotations

import ase.io
import numpy as np
import pytest
from ase.build import fcc111, molecule
from ase.calculators.emt import EMT
from ase.constraints import (
    FixAtoms,
    FixBondLength,
    FixCartesian,
    FixedPlane,
    FixInternals,
    FixScaled,
    Hookean,
)

from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.outputs import LOG, RESTART
from mlff_triton.dynamics.systems import repartition_masses
from mlff_triton.errors import InputError
from tests.support.springs import FailsAfter, Springs, stop_at


def ethanol(fixed=(0, 1, 5)):
    atoms = molecule("CH3CH2OH")
    atoms.set_constraint(FixAtoms(list(fixed)))
    return atoms


def slab():
    atoms = fcc111("Cu", (2, 2, 4), vacuum=8.0)
    atoms.set_constraint(FixAtoms(mask=atoms.positions[:, 2] < 11.0))
    return atoms


PLANS = {
    "langevin": Settings(stages=(Stage("nvt", 30), Stage("nve", 10)), every=8, minimize=True),
    "rescaling": Settings(stages=(Stage("nvt", 40),), every=8, thermostat="rescaling"),
    "heavy": Settings(stages=(Stage("nvt", 40),), every=8, hydrogen_mass=3.0),
}


@pytest.mark.parametrize("plan", PLANS)
def test_they_stay_everywhere_and_a_continued_run_has_the_same_bits(tmp_path, plan):
    atoms, settings = ethanol(), PLANS[plan]
    anchors = atoms.positions + 0.05
    assert Simulation.start(atoms, Springs(anchors), settings, tmp_path / "a").run()
    broken = Simulation.start(atoms, Springs(anchors), settings, tmp_path / "b")
    for stop in (5, 21):
        assert not broken.run(should_stop=stop_at(broken, stop), block=1)
        snapshot = load_restart(tmp_path / "b" / RESTART)
        (system,) = snapshot.systems
        assert np.flatnonzero(fixed_atoms(system)).tolist() == [0, 1, 5]
        np.testing.assert_array_equal(system.positions, snapshot.state.positions)
        np.testing.assert_array_equal(system.positions[[0, 1, 5]], atoms.positions[[0, 1, 5]])
        assert not snapshot.state.velocities[[0, 1, 5]].any()
        broken = Simulation.resume(snapshot, Springs(anchors), tmp_path / "b")
    assert broken.run()
    for name in ("trajectory.xyz", LOG):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()

    frames = ase.io.read(tmp_path / "a" / "trajectory.xyz", ":")
    for frame in frames:
        assert frame.constraints[0].index.tolist() == [0, 1, 5]
        np.testing.assert_allclose(
            frame.positions[[0, 1, 5]], atoms.positions[[0, 1, 5]], atol=1e-8
        )
        assert not frame.get_momenta()[[0, 1, 5]].any()
        again = Springs(anchors)
        again.calculate(frame)
        assert frame.get_potential_energy() == pytest.approx(again.results["energy"], abs=1e-6)
        forces = frame.get_forces(apply_constraint=False)
        np.testing.assert_allclose(forces, again.results["forces"], atol=1e-6)
    moved = np.linalg.norm(frames[-1].positions - atoms.positions, axis=1)
    assert (moved > 1e-3).tolist() == (~fixed_atoms(atoms)).tolist()


@pytest.mark.parametrize("thermostat", ["langevin", "rescaling"])
def test_the_temperature_is_that_of_the_atoms_that_move(tmp_path, thermostat):
    settings = Settings(
        stages=(Stage("nvt", 2500),),
        timestep=2.0,
        thermostat=thermostat,
        friction=20.0,
        thermostat_time=20.0,
        every=2500,
        log_every=10,
    )
    run = Simulation.start(slab(), Springs(slab().positions), settings, tmp_path / "run")
    run.run()
    log = np.genfromtxt(tmp_path / "run" / LOG, delimiter=",", names=True, dtype=None)
    settled = log["temperature_K"][50:]
    assert settled.mean() == pytest.approx(300, rel=0.1)
    kinetic = log["kinetic_eV"][0] / (1.5 * 8.617333e-5 * 8)  # 8 of 16 atoms move
    assert log["temperature_K"][0] == pytest.approx(kinetic, rel=1e-4)
    assert np.ptp(log["conserved_eV"]) < 0.02 * np.ptp(log["potential_eV"]) + 0.01


def test_replicas_have_their_own_fixed_atoms(tmp_path):
    systems = [ethanol(), molecule("CH3CH2OH"), ethanol([3])]
    settings = Settings(
        stages=(Stage("nvt", 20),), temperature=(300.0, 310.0, 320.0), exchange_every=4, every=10
    )
    run = Simulation.start(systems, Springs(systems[0].positions), settings, tmp_path / "run")
    run.run()
    restored = load_restart(tmp_path / "run" / RESTART).systems
    assert [np.flatnonzero(fixed_atoms(one)).tolist() for one in restored] == [[0, 1, 5], [], [3]]
    for k, atoms in enumerate(systems):
        last = ase.io.read(tmp_path / "run" / f"trajectory-{k:03d}.xyz", -1)
        still = np.linalg.norm(last.positions - atoms.positions, axis=1) < 1e-7
        assert still.tolist() == fixed_atoms(atoms).tolist()
    alone = Simulation.start(
        ethanol(),
        Springs(systems[0].positions),
        Settings(stages=(Stage("nvt", 9),)),
        tmp_path / "1",
    )
    alone.run()


def test_a_slab_of_metal_conserves_its_energy(tmp_path):
    settings = Settings(stages=(Stage("nve", 100),), timestep=2.0, every=50, log_every=1)
    Simulation.start(slab(), EMT(), settings, tmp_path / "run").run()
    log = np.genfromtxt(tmp_path / "run" / LOG, delimiter=",", names=True, dtype=None)
    assert np.ptp(log["total_eV"]) < 0.01 * np.ptp(log["kinetic_eV"])


@pytest.mark.parametrize("trajectory", ["dcd", "xtc"])
def test_formats_without_constraints_record_them_too(tmp_path, trajectory):
    settings = Settings(stages=(Stage("nvt", 10),), every=5, trajectory=trajectory)
    run = Simulation.start(ethanol(), Springs(ethanol().positions), settings, tmp_path / "run")
    assert run.run()


OTHER = {
    "FixBondLengths": FixBondLength(0, 2),
    "FixCartesian": FixCartesian(0, (True, True, False)),
    "FixScaled": FixScaled([0], (False, True, False)),
    "FixedPlane": FixedPlane(0, (0, 0, 1)),
    "Hookean": Hookean(0, 2, 5.0, rt=1.4),
    "FixInternals": FixInternals(bonds=[[1.4, [0, 2]]]),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_constraints_are_refused_before_anything_is_written(tmp_path, name):
    atoms = molecule("CH3CH2OH")
    atoms.set_constraint([FixAtoms([3]), OTHER[name]])
    before = atoms.positions.copy()
    with pytest.raises(InputError, match=rf"the constraint {name} is not supported"):
        Simulation.start(atoms, Springs(before), Settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    np.testing.assert_array_equal(atoms.positions, before)


@pytest.mark.parametrize(
    ("constraints", "fixed"),
    [
        ([FixAtoms([0, -1]), FixAtoms([3])], [0, 3, 8]),
        ([FixCartesian([1, 2]), FixScaled([4]), FixCartesian(7, (False,) * 3)], [1, 2, 4]),
        ([FixAtoms([])], []),
    ],
)
def test_constraints_that_fix_whole_atoms(constraints, fixed):
    atoms = molecule("CH3CH2OH")
    atoms.set_constraint(constraints)
    assert np.flatnonzero(fixed_atoms(atoms)).tolist() == fixed


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (FixAtoms(range(9)), "all atoms are fixed"),
        (FixAtoms([9]), "names atoms that the 9 atoms lack"),
    ],
)
def test_constraints_that_make_no_sense(tmp_path, constraint, message):
    atoms = molecule("CH3CH2OH")
    atoms.set_constraint(constraint)
    with pytest.raises(InputError, match=message):
        Simulation.start(atoms, Springs(atoms.positions), Settings(), tmp_path / "run")


def test_a_barostat_would_move_fixed_atoms(tmp_path):
    atoms = ethanol()
    atoms.set_cell([9, 9, 9])
    atoms.pbc = True
    with pytest.raises(InputError, match="npt moves every atom with the cell"):
        Simulation.start(atoms, EMT(), Settings(stages=(Stage("npt", 5),)), tmp_path / "run")


def test_rescaling_needs_three_degrees_of_freedom(tmp_path):
    atoms, settings = molecule("H2O"), Settings(stages=(Stage("nvt", 5),), thermostat="rescaling")
    atoms.set_constraint(FixAtoms([0, 1]))
    assert Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a").run()
    with pytest.raises(InputError, match="three degrees of freedom"):
        Simulation.start(molecule("H2"), Springs(np.zeros((2, 3))), settings, tmp_path / "b")


def test_given_velocities_of_fixed_atoms_are_zero_from_the_start(tmp_path):
    atoms = ethanol()
    atoms.set_velocities(np.ones((9, 3)))
    run = Simulation.start(atoms, Springs(atoms.positions), Settings(), tmp_path / "run")
    velocities = load_restart(run.restart_path).state.velocities
    assert velocities.any(1).tolist() == (~fixed_atoms(atoms)).tolist()


def test_hydrogen_that_is_fixed_keeps_its_mass():
    atoms = ethanol([3])
    before = atoms.get_masses()
    repartition_masses(atoms, 3.0)
    assert atoms.get_masses()[3] == before[3] == 1.008
    assert (atoms.get_masses()[4:] == 3).all()
    assert atoms.get_masses().sum() == pytest.approx(before.sum())


def test_a_fixed_atom_is_not_blamed(tmp_path):
    """The spring of atom 0 is stretched most, but it cannot move."""
    atoms = ethanol([0])
    anchors = atoms.positions.copy()
    anchors[0] += 3
    anchors[4] += 0.5
    calculator = FailsAfter(anchors, 9, np.nan)
    run = Simulation.start(
        atoms, calculator, Settings(stages=(Stage("nve", 20),)), tmp_path / "run"
    )
    with pytest.raises(Exception, match=r"at atom 4 \(H\)"):
        run.run()
