"""OpenMM forces in checkpoints, XML files, copies and reporters."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from mlff_triton import Ensemble, create_openmm_force, save_model
from mlff_triton.calculators.openmm import force as openmm_force
from mlff_triton.calculators.openmm.force import EngineForce

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
from openmm import app  # noqa: E402

from tests.support.openmm_systems import (  # noqa: E402
    FS,
    STRUCTURES,
    context_of,
    energy_and_forces,
    force_for,
    now,
    small_model,
    system_of,
    topology_of,
)

# Files


def test_checkpoints_go_on_to_the_bit():
    atoms = STRUCTURES["water"]
    system = system_of(atoms, force_for(atoms))

    def start():
        integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.5 * FS)
        integrator.setRandomNumberSeed(5)
        return context_of(system, atoms, integrator=integrator), integrator

    context, integrator = start()
    integrator.step(7)
    checkpoint = context.createCheckpoint()
    integrator.step(10)
    expected = now(context, atoms).positions
    for _ in range(2):  # in this Context, and in a new one
        context.loadCheckpoint(checkpoint)
        integrator.step(10)
        assert np.array_equal(now(context, atoms).positions, expected)
        context, integrator = start()


def models_in(folder):
    path = folder / "model.safetensors"
    save_model(small_model(), path)
    return {
        "name": "tensornet-gfn2",
        "path": path,
        "relative path": "model.safetensors",
        "model": small_model(),
        "ensemble": Ensemble([small_model(1), small_model(2)]),
    }


@pytest.mark.parametrize("kind", ["name", "path", "relative path", "model", "ensemble"])
def test_systems_are_written_and_read(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    atoms = STRUCTURES["water"]
    model = models_in(tmp_path)[kind]
    part = [3, 4, 5, 0]
    force = force_for(
        atoms, model, dtype="float64", particles=part, force_group=2, remove_references=True
    )
    system = system_of(atoms, force)
    text = openmm.XmlSerializer.serialize(system)
    monkeypatch.chdir("/")
    read = openmm.XmlSerializer.deserialize(text)
    again = read.getForce(0)
    assert isinstance(again, openmm.PythonForce)
    assert again.usesPeriodicBoundaryConditions()
    assert (again.getForceGroup(), again.getName()) == (2, "mlff_triton")
    assert list(again.getParticles()) == part
    expected = energy_and_forces(context_of(system, atoms))
    actual = energy_and_forces(context_of(read, atoms))
    assert actual[0] == expected[0]
    assert np.array_equal(actual[1], expected[1])
    assert openmm.XmlSerializer.serialize(read) == text


def test_a_model_that_is_gone_is_said_at_the_first_step(tmp_path):
    """It is not said when the file is read, as OpenMM would crash."""
    atoms = STRUCTURES["water"]
    path = models_in(tmp_path)["path"]
    text = openmm.XmlSerializer.serialize(system_of(atoms, force_for(atoms, path)))
    path.unlink()
    context = context_of(openmm.XmlSerializer.deserialize(text), atoms)
    with pytest.raises(openmm.OpenMMException, match="CheckpointError: there is no model") as error:
        context.getState(energy=True)
    assert "\n" not in str(error.value)


def test_default_is_written_by_the_name_of_the_model():
    """A file stays the same if another model becomes the default."""
    force = EngineForce(openmm_force.Recipe("default", np.array([8])))
    assert force.__reduce__()[1][0].model == "default"
    assert openmm_force.lasting_model("default") == "tensornet-wb97m"


def test_a_model_given_is_copied():
    model = copy.deepcopy(small_model())
    atoms = STRUCTURES["water"]
    system = system_of(atoms, force_for(atoms, model))
    expected = energy_and_forces(context_of(system, atoms))
    model.readout.linear.weight.data.zero_()
    copied = copy.deepcopy(system)
    for one in (system, copied):
        energy, forces = energy_and_forces(context_of(one, atoms))
        assert energy == expected[0]
        assert np.array_equal(forces, expected[1])


def test_reporters(tmp_path):
    atoms = STRUCTURES["water"]
    topology = topology_of(atoms)
    simulation = app.Simulation(
        topology,
        system_of(atoms, create_openmm_force(topology, device="cpu", remove_references=True)),
        openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.5 * FS),
        openmm.Platform.getPlatformByName("CPU"),
    )
    simulation.context.setPositions(atoms.positions / 10)
    log, trajectory = tmp_path / "log.csv", tmp_path / "trajectory.dcd"
    simulation.reporters += [
        app.StateDataReporter(str(log), 2, step=True, potentialEnergy=True, density=True),
        app.DCDReporter(str(trajectory), 2),
        app.CheckpointReporter(str(tmp_path / "checkpoint"), 4),
    ]
    simulation.step(6)
    del simulation
    steps, energies, _ = np.loadtxt(log, delimiter=",", skiprows=1).T
    assert steps.tolist() == [2, 4, 6]
    assert len(set(energies)) == 3
    assert trajectory.stat().st_size > 3 * 12 * len(atoms)
    assert (tmp_path / "checkpoint").stat().st_size > 0
