"""Decoupled mixed systems in which the model's charges act with those of the force field."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

from mlff_triton.calculators import decouple, energy_derivatives
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import DecouplingWarning, EmbeddingWarning, InputError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.testing import assert_within
from tests.support.charged import charged_model

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
from openmm import app  # noqa: E402

from tests.support import mixed_systems as systems  # noqa: E402
from tests.support.mixed_systems import context_of, energy_of, forces_of  # noqa: E402
from tests.support.openmm_systems import topology_of  # noqa: E402

EV = 96.48533212331001  # kJ/mol, from CODATA 2018
PART = [0, 1, 2, 15, 16, 17]
CUTOFF = 0.45  # nm
METHODS = ["NoCutoff", "CutoffNonPeriodic", "CutoffPeriodic", "PME"]
ELECTROSTATICS, STERICS = "lambda_electrostatics", "lambda_sterics"


@functools.cache
def waters():
    return systems.waters()


@functools.cache
def model(channels: int = 6):
    """Return a model with charges of about 1 e, or with smaller ones and more channels."""
    made = charged_model(hidden_channels=channels)
    made.charges[-1].linears[2].weight.data *= 20 if channels == 6 else 4
    made.std.fill_(1.0)
    return made


def classical(method, charges=None, atoms=None):
    """Make a System without a dispersion correction, of which OpenMM computes five digits."""
    atoms = waters() if atoms is None else atoms
    system = systems.classical(atoms, method, CUTOFF, charges, tolerance=1e-6)
    system.getForce(0).setUseDispersionCorrection(False)
    return system


def mixed(system, embedding="ml-charges", **options):
    options.setdefault("model", model())
    if embedding == "ml-charges":
        options = {"pme_error": 1e-6, "damping": 0.08, **options}
    else:
        options["periodic"] = False
    return systems.mixed(waters(), system, PART, embedding=embedding, **options)


def context_at(system, sterics, electrostatics):
    context = context_of(system, waters().positions)
    context.setParameter(STERICS, sterics)
    context.setParameter(ELECTROSTATICS, electrostatics)
    return context


def of_the_model_alone(method):
    """Return the results for both molecules, which are next to each other in a periodic box."""
    atoms = waters()[PART]
    if method in systems.PERIODIC:
        apart = atoms.positions[3:].mean(0) - atoms.positions[:3].mean(0)
        atoms.positions[3:] -= np.round(apart / atoms.cell.lengths()) * atoms.cell.lengths()
    engine = Engine(model(), "cpu", "float64", backend="exact")
    return engine.compute(atoms.numbers, atoms.positions)


@pytest.mark.parametrize("method", METHODS)
def test_coupled_is_the_original(method):
    original = context_of(mixed(classical(method)), waters().positions)
    coupled = context_of(mixed(decouple(classical(method), PART)), waters().positions)
    assert dict(coupled.getParameters()) == {STERICS: 1.0, ELECTROSTATICS: 1.0}
    assert ELECTROSTATICS not in dict(original.getParameters())
    assert energy_of(coupled) == pytest.approx(energy_of(original), abs=1e-7)
    assert_within(forces_of(coupled), forces_of(original), 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_decoupled_is_the_sum_of_the_parts(method):
    outside = np.delete(np.arange(len(waters())), PART)
    rest = context_of(classical(method, atoms=waters()[outside]), waters()[outside].positions)
    alone = of_the_model_alone(method)
    apart = context_at(mixed(decouple(classical(method), PART)), 0.0, 0.0)
    expected = energy_of(rest) + EV * alone.energy.item()
    assert energy_of(apart) == pytest.approx(expected, abs=1e-6)
    forces = forces_of(apart)
    assert_within(forces[outside], forces_of(rest), 1e-9)
    assert_within(forces[PART], 10 * EV * alone.forces.numpy(), 1e-9)


@pytest.mark.parametrize(("method", "error"), [*((m, 1e-8) for m in METHODS[:3]), ("PME", 1e-3)])
def test_with_the_force_fields_charges_it_is_mechanical_embedding(method, error):
    """There, OpenMM scales the charges. Forces of other atoms do not know where charges are from.

    With Ewald sums, the interaction with periodic images scales by the square.
    """
    charges = np.array([-0.834, 0.417, 0.417] * 27)
    charges[PART] = of_the_model_alone(method).charges.numpy()
    system = decouple(classical(method, charges), PART)
    ours, theirs = (
        context_at(s, 0.6, 0.3) for s in (mixed(system, damping=0), mixed(system, "mechanical"))
    )
    outside = np.delete(np.arange(len(waters())), PART)
    assert energy_of(ours) == pytest.approx(energy_of(theirs), abs=max(error, 1e-7) * 100)
    assert_within(forces_of(ours)[outside], forces_of(theirs)[outside], error)
    found, expected = energy_derivatives(ours), energy_derivatives(theirs)
    for name in (STERICS, ELECTROSTATICS):
        assert found[name] == pytest.approx(expected[name], abs=max(error, 1e-7) * 100)


@pytest.mark.parametrize("values", [(1.0, 1.0), (1.0, 0.3), (0.5, 0.0)])
@pytest.mark.parametrize("method", METHODS)
def test_derivatives_are_those_of_the_energy(method, values):
    context = context_at(mixed(decouple(classical(method), PART), forceGroup=7), *values)
    found = energy_derivatives(context)
    at = dict(zip((STERICS, ELECTROSTATICS), values, strict=True))
    assert dict(context.getParameters()) == at
    for name, value in at.items():
        energies, h = {}, 2e-3
        for k in (-2, -1, 1, 2):
            context.setParameter(name, value + k * h)
            energies[k] = energy_of(context)
        context.setParameter(name, value)
        slope = (8 * (energies[1] - energies[-1]) - energies[2] + energies[-2]) / (12 * h)
        assert found[name] == pytest.approx(slope, rel=1e-6, abs=1e-5)
        assert abs(slope) > 0.1


@pytest.mark.parametrize("method", METHODS)
def test_forces_are_those_of_the_energy(method):
    context = context_at(mixed(decouple(classical(method), PART)), 0.6, 0.4)
    forces, some = forces_of(context), [0, 16, 3, 40]
    found = systems.difference_forces(context, waters().positions, some, 2e-5)
    assert_within(forces[some], found, 1e-5)


@pytest.mark.parametrize("method", ["CutoffPeriodic", "PME"])
def test_ensembles_are_means(method):
    members = [model(), model(32)]
    system = decouple(classical(method), PART)
    both, *each = (
        energy_derivatives(context_at(mixed(system, model=m), 1.0, 0.4))
        for m in (Ensemble(members), *members)
    )
    mean = np.mean([found[ELECTROSTATICS] for found in each])
    assert both[ELECTROSTATICS] == pytest.approx(mean, rel=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton-graph", "triton", "exact"])
def test_parameters_change_between_steps_on_a_gpu(backend):
    system = decouple(classical("PME"), PART)
    options = {"model": model(32), "forceGroup": 7}
    contexts = [
        context_of(mixed(system, device=device, **options, **given), waters().positions)
        for device, given in (("cpu", {}), ("cuda", {"backend": backend}))
    ]
    for value in (1.0, 0.3, 0.0, 0.7):
        for context in contexts:
            context.setParameter(ELECTROSTATICS, value)
        assert energy_of(contexts[1]) == pytest.approx(energy_of(contexts[0]), abs=1e-5)
        assert_within(forces_of(contexts[1]), forces_of(contexts[0]), 1e-8)
        found, expected = (energy_derivatives(c)[ELECTROSTATICS] for c in reversed(contexts))
        assert found == pytest.approx(expected, abs=1e-5)


def test_decoupled_systems_are_written_and_read():
    system = mixed(decouple(classical("PME"), PART))
    read = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    contexts = [context_at(s, 0.4, 0.7) for s in (system, read)]
    assert energy_of(contexts[0]) == energy_of(contexts[1])
    assert energy_derivatives(contexts[0]) == energy_derivatives(contexts[1])


def test_samplers_read_energies_of_all_states():
    """Without periodic images, the energy is linear in the parameter."""
    values = (1.0, 0.5, 0.0)
    states = [{ELECTROSTATICS: value, STERICS: 1.0} for value in values]
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.0002)
    system = mixed(decouple(classical("NoCutoff"), PART))
    platform = openmm.Platform.getPlatformByName("Reference")
    simulation = app.Simulation(topology_of(waters()), system, integrator, platform)
    simulation.context.setPositions(waters().positions / 10)
    sampler = app.ReplicaExchangeSampler(states, simulation, 1)
    sampler.simulate(2)
    for energies in sampler.replicaStateEnergy:
        first, middle, last = (energy._value for energy in energies)
        assert abs(first - last) > 1.0
        assert middle == pytest.approx((first + last) / 2, abs=1e-6)


def test_charged_parts_warn_unless_the_force_field_agrees():
    charges = np.array([-0.834, 0.417, 0.417] * 27)
    with pytest.warns(EmbeddingWarning, match=r"\+0 e in the force field, but \+1 e in the model"):
        mixed(decouple(classical("PME"), PART), charge=1)
    charges[0] += 1
    with pytest.warns(DecouplingWarning, match=r"the region has a charge of \+1"):
        system = decouple(classical("PME", charges), PART)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed(system, charge=1)


@pytest.mark.parametrize("region", [PART[:3], [*PART, 3, 4, 5], [3, 4, 5]])
def test_another_region_is_refused(region):
    with pytest.raises(InputError, match="decouple exactly the atoms of the model"):
        mixed(decouple(classical("PME"), region))


@pytest.mark.parametrize("name", [ELECTROSTATICS, "other"])
@pytest.mark.parametrize("atom", [0, 4])
def test_other_offsets_are_refused(atom, name):
    system = decouple(classical("PME"), PART)
    nonbonded = system.getForce(0)
    if name == "other":
        nonbonded.addGlobalParameter(name, 0.0)
    if (atom, name) == (0, ELECTROSTATICS):
        nonbonded.addExceptionParameterOffset(name, 0, 0.1, 0.0, 0.0)
    else:
        nonbonded.addParticleParameterOffset(name, atom, 0.1, 0.0, 0.0)
    with pytest.raises(InputError, match="the NonbondedForce has offsets"):
        mixed(system)


def test_other_orders_and_interpolation_are_refused():
    with pytest.raises(InputError, match="decouple first, and mix afterwards"):
        decouple(mixed(classical("PME")), PART)
    with pytest.raises(InputError, match="cannot interpolate Systems with a CustomNonbondedForce"):
        mixed(decouple(classical("PME"), PART), interpolate=True)
