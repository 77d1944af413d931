"""Free energies: mixed systems that are decoupled or interpolated, and OpenMM's samplers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

from mlff_triton import TensorNetCalculator, create_openmm_force
from mlff_triton.calculators import decouple, energy_derivatives
from mlff_triton.errors import BackendError, InputError

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
from openmm import app, unit  # noqa: E402
from openmmml import MLPotential  # noqa: E402

from tests.support.openmm_systems import EV, small_model  # noqa: E402
from tests.support.solvated_peptide import force_field, solvated  # noqa: E402

REGION = list(range(22))
OURS = {"device": "cpu", "dtype": "float64"}
GROUP = 7
ROUGH = 1e-5  # kJ/mol; OpenMM integrates dispersion corrections of custom forces to five digits
KT = 0.00831446261815324 * 300  # kJ/mol


def classical(topology: app.Topology, method: Any = app.PME) -> openmm.System:
    return force_field().createSystem(
        topology, nonbondedMethod=method, nonbondedCutoff=0.9, constraints=app.HBonds
    )


def mixed(system: openmm.System, **options: Any) -> openmm.System:
    potential = MLPotential("mlff-triton", modelPath=small_model())
    return potential.createMixedSystem(
        solvated()[0], system, REGION, **{"forceGroup": GROUP, **OURS, **options}
    )


def context_of(system: openmm.System, positions: np.ndarray | None = None, **values: float):
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )
    context.setPositions(solvated()[1] if positions is None else positions)
    for name, value in values.items():
        context.setParameter(name, value)
    return context


def energy_of(context: openmm.Context) -> float:
    return float(context.getState(energy=True).getPotentialEnergy()._value)


def forces_of(context: openmm.Context) -> np.ndarray:
    return np.array(context.getState(forces=True).getForces(asNumpy=True)._value)


ORDERS = {
    "mixed first": lambda system: decouple(mixed(system), REGION),
    "decoupled first": lambda system: mixed(decouple(system, REGION)),
    "by hand": lambda system: _by_hand(decouple(mixed(system), REGION)),
}


def _by_hand(system: openmm.System) -> openmm.System:
    """Replace the force of openmm-ml by one of `create_openmm_force`."""
    index = next(k for k, f in enumerate(system.getForces()) if f.getName() == "mlff_triton")
    system.removeForce(index)
    system.addForce(create_openmm_force(solvated()[0], small_model(), particles=REGION, **OURS))
    return system


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("method", [app.PME, app.CutoffPeriodic, app.NoCutoff])
def test_a_mixed_system_has_both_ends(method: Any, order: str) -> None:
    """Decoupled, it is the model's molecule in vacuum and the water, each computed apart."""
    topology, positions = solvated()
    system = ORDERS[order](classical(topology, method))
    expected = context_of(mixed(classical(topology, method)))
    coupled = context_of(system)
    assert energy_of(coupled) == pytest.approx(energy_of(expected), abs=ROUGH)
    np.testing.assert_allclose(forces_of(coupled), forces_of(expected), rtol=1e-6, atol=1e-3)

    model = Atoms([a.element.atomic_number for a in topology.atoms()][:22], positions[:22] * 10)
    model.calc = TensorNetCalculator(small_model(), **OURS)
    rest = app.Modeller(topology, positions * unit.nanometer)
    rest.delete([atom for atom in topology.atoms() if atom.index < 22])
    water = classical(rest.topology, method)
    for whole in (system, water):
        _without_tail(whole)
    apart = context_of(system, lambda_sterics=0.0, lambda_electrostatics=0.0)
    alone = context_of(water, positions[22:])
    energy = model.get_potential_energy() * EV + energy_of(alone)
    assert energy_of(apart) == pytest.approx(energy, abs=ROUGH)
    forces = np.concatenate([model.get_forces() * EV * 10, forces_of(alone)])
    np.testing.assert_allclose(forces_of(apart), forces, rtol=1e-6, atol=1e-3)


def _without_tail(system: openmm.System) -> None:
    """Take away dispersion corrections, which depend on the number of all particles."""
    for k in reversed(range(system.getNumForces())):
        force = system.getForce(k)
        if isinstance(force, openmm.NonbondedForce):
            force.setUseDispersionCorrection(False)
        elif isinstance(force, openmm.CustomNonbondedForce):
            force.setUseLongRangeCorrection(False)
        elif isinstance(force, openmm.CustomVolumeForce):
            system.removeForce(k)


@pytest.mark.parametrize(("atoms", "fits"), [(28, False), (22, True), (19, True)])
def test_a_model_does_not_couple_what_is_decoupled(atoms: int, fits: bool) -> None:
    """It may compute the region, part of it with caps, or other atoms, but no atoms of both."""
    topology, _ = solvated()
    part = list(range(atoms))
    if atoms == 19:  # without the last residue, of which one bond is cut
        part = [a.index for a in topology.atoms() if a.residue.name in ("ACE", "ALA")]
    potential = MLPotential("mlff-triton", modelPath=small_model())
    decoupled = decouple(classical(topology), REGION)
    if not fits:
        with pytest.raises(InputError, match="which do not scale: decouple all atoms of the mod"):
            potential.createMixedSystem(topology, decoupled, part, **OURS)
        return
    system = potential.createMixedSystem(topology, decoupled, part, **OURS)
    assert "mlff_triton" in [force.getName() for force in system.getForces()]
    potential.createMixedSystem(topology, decoupled, [22, 23, 24], **OURS)


def test_interpolated_systems_are_decoupled_afterwards() -> None:
    system = mixed(classical(solvated()[0]), interpolate=True)
    _ask_for_derivative(system)
    decoupled = decouple(system, REGION)
    values = {"lambda_interpolate": 0.4, "lambda_electrostatics": 0.3}
    context = context_of(decoupled, **values)
    found = energy_derivatives(context)
    assert set(found) == {*values, "lambda_sterics"}
    for name, value in values.items():
        energies = []
        for shifted in (value - 0.1, value + 0.1):
            context.setParameter(name, shifted)
            energies.append(energy_of(context))
        context.setParameter(name, value)
        assert found[name] == pytest.approx((energies[1] - energies[0]) / 0.2, rel=1e-6)
    context.setParameter("lambda_electrostatics", 1.0)
    original = context_of(system, lambda_interpolate=0.4)
    assert energy_of(context) == pytest.approx(energy_of(original), abs=ROUGH)
    np.testing.assert_allclose(forces_of(context), forces_of(original), rtol=1e-6, atol=1e-3)


def _ask_for_derivative(system: openmm.System) -> None:
    for force in system.getForces():
        if isinstance(force, openmm.CustomCVForce):
            force.addEnergyParameterDerivative("lambda_interpolate")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_interpolation_never_takes_the_torch_route(device: str, monkeypatch: Any) -> None:
    """openmm-ml copies forces to interpolate, and copying a TorchForce ends the process."""
    from mlff_triton.calculators.openmm import force

    monkeypatch.setattr(force, "_torch_obstacle", lambda: None)
    monkeypatch.setattr(force, "find_device", lambda _: force.torch.device(device))
    made = []
    monkeypatch.setattr(force, "_torch_force", lambda recipe: made.append(recipe) or 1 / 0)
    system = classical(solvated()[0])
    mixed(system, interpolate=True)
    assert not made
    with pytest.raises(BackendError, match=r"interpolate=True.* use route='python'"):
        mixed(system, interpolate=True, route="torch")
    assert not made
    with pytest.raises(ZeroDivisionError):
        mixed(system, route="torch")


def test_a_torch_force_is_refused() -> None:
    """A System that holds one cannot be copied; the double has what the check reads."""
    from mlff_triton.calculators.openmm.decoupling_checks import _check_force

    with pytest.raises(InputError, match=r"cannot copy a TorchForce, .* createMixedSystem mix it"):
        _check_force(type("TorchForce", (), {})(), {0})


# Samplers: one particle moves in the field of another, so that the truth is an integral


EDGE, SIGMA, EPSILON = 1.4, 0.34, 6.0
STATES = [{"lambda_sterics": value} for value in (0.0, 0.25, 0.5, 1.0)]


def exact() -> float:
    """Return the free energy of coupling by an integral over the box, kJ/mol."""
    points = (np.arange(70) + 0.5) / 70 * EDGE - EDGE / 2
    r = np.sqrt(sum(x**2 for x in np.meshgrid(points, points, points)))
    energy = 4 * EPSILON * ((SIGMA / r) ** 12 - (SIGMA / r) ** 6) * (r < 0.69)
    return -KT * np.log(np.exp(-energy / KT).mean())


def pair() -> app.Simulation:
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*EDGE * np.eye(3))
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(force.CutoffPeriodic)
    force.setCutoffDistance(0.69)
    force.setUseDispersionCorrection(False)
    topology = app.Topology()
    residue = topology.addResidue("AR", topology.addChain())
    for mass in (0.0, 10.0):
        system.addParticle(mass)
        force.addParticle(0.0, SIGMA, EPSILON)
        topology.addAtom("Ar", app.Element.getBySymbol("Ar"), residue)
    system.addForce(force)
    integrator = openmm.LangevinMiddleIntegrator(300, 5.0, 0.01)
    integrator.setRandomNumberSeed(1)
    platform = openmm.Platform.getPlatformByName("Reference")
    simulation = app.Simulation(topology, decouple(system, [1]), integrator, platform)
    simulation.context.setPositions([[0, 0, 0], [0.4, 0, 0]])
    simulation.context.setVelocitiesToTemperature(300, 1)
    return simulation


def test_replica_exchange_finds_the_free_energy() -> None:
    """Between neighbors, by Bennett's acceptance ratio: as many samples in each state."""
    random.seed(0)  # OpenMM exchanges states by it
    sampler = app.ReplicaExchangeSampler(STATES, pair(), 50)
    samples: list[np.ndarray] = []

    def report(current: Any) -> None:
        rows = np.empty((len(STATES), len(STATES)))
        for replica, state in enumerate(current.replicaStateIndex):
            rows[state] = current.replicaStateEnergy[replica]._value
        samples.append(rows / KT)

    sampler.reporters.append(report)
    sampler.simulate(400)
    u = np.array(samples[20:])
    total = sum(
        _bennett(u[:, k, k + 1] - u[:, k, k], u[:, k + 1, k] - u[:, k + 1, k + 1])
        for k in range(len(STATES) - 1)
    )
    assert exact() < -1.0
    assert total * KT == pytest.approx(exact(), abs=0.3)


def _bennett(forward: np.ndarray, backward: np.ndarray) -> float:
    """Return the free energy difference in kT, given energy differences of as many samples."""
    low, high = -20.0, 20.0
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        if _fermi(forward - middle).sum() < _fermi(backward + middle).sum():
            low = middle
        else:
            high = middle
    return low


def _fermi(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(x))


def test_an_expanded_ensemble_visits_all_states(tmp_path: Path) -> None:
    random.seed(0)
    simulation = pair()
    sampler = app.ExpandedEnsembleSampler(
        STATES, simulation, 50, reportInterval=50, logFile=str(tmp_path / "log.csv")
    )
    simulation.step(20_000)
    rows = np.loadtxt(tmp_path / "log.csv", delimiter=",", skiprows=1)
    assert set(rows[:, 2]) == {0, 1, 2, 3}
    assert len(sampler.weights) == 4
    assert np.isfinite(sampler.weights).all()
