"""Decoupled regions: both ends against Systems computed apart, derivatives, forces, samplers."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from mlff_triton.calculators import decouple, energy_derivatives
from mlff_triton.errors import DecouplingWarning, InputError

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
from openmm import NonbondedForce as Nonbonded  # noqa: E402

PERIODIC = ["CutoffPeriodic", "Ewald", "PME"]
METHODS = ["NoCutoff", "CutoffNonPeriodic", *PERIODIC]
SIZE = 5  # atoms of each molecule, which is a chain
EDGE, CUTOFF = 2.4, 1.1  # nm
PARAMETERS = ("lambda_sterics", "lambda_electrostatics")
TOLERANCES = {"Reference": 5e-6, "CPU": 1e-4}  # kJ/mol; of energies of 500
REGION = range(SIZE)
TWO = [*REGION, *range(8 * SIZE, 9 * SIZE)]  # two molecules, far from each other


@functools.cache
def liquid(seed: int = 0) -> np.ndarray:
    """Return positions [N, 3] of 27 molecules on a grid, in nm."""
    rng = np.random.default_rng(seed)
    corners = np.array(list(itertools.product(range(3), repeat=3))) * EDGE / 3
    axes = rng.normal(size=(27, 3))
    axes *= 0.12 / np.linalg.norm(axes, axis=1, keepdims=True)
    chains = corners[:, None] + np.arange(SIZE)[None, :, None] * axes[:, None]
    return chains.reshape(-1, 3) + rng.normal(scale=0.03, size=(27 * SIZE, 3))


def parameters(n_atoms: int, charge: float = 0.0) -> np.ndarray:
    """Return charges, sigmas and epsilons [3, N]. The first molecule has the total charge."""
    rng = np.random.default_rng(1)
    charges = rng.normal(scale=0.4, size=(n_atoms // SIZE, SIZE))
    charges -= charges.mean(axis=1, keepdims=True)
    charges[0] += charge / SIZE
    kinds = rng.integers(0, 3, n_atoms)
    sigmas = np.array([0.0, 0.25, 0.31])[kinds]
    return np.stack([charges.ravel(), sigmas, np.array([0.0, 0.3, 0.7])[kinds]])


def system_of(
    method: str = "PME",
    molecules: range = range(27),
    *,
    switch: bool = True,
    tail: bool = True,
    charge: float = 0.0,
) -> openmm.System:
    """Make a System of some molecules, whose atoms are counted from 0."""
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*EDGE * np.eye(3))
    force, bonds = Nonbonded(), openmm.HarmonicBondForce()
    force.setNonbondedMethod(getattr(Nonbonded, method))
    force.setCutoffDistance(CUTOFF)
    force.setUseSwitchingFunction(switch)
    force.setSwitchingDistance(0.8)
    force.setUseDispersionCorrection(tail)
    force.setEwaldErrorTolerance(1e-6)
    force.setForceGroup(3)
    rows = parameters(27 * SIZE, charge).T
    pairs = []
    for k, molecule in enumerate(molecules):
        for row in rows[SIZE * molecule : SIZE * (molecule + 1)]:
            system.addParticle(12.0)
            force.addParticle(*row)
        chain = [(SIZE * k + i, SIZE * k + i + 1) for i in range(SIZE - 1)]
        for pair in chain:
            bonds.addBond(*pair, 0.12, 1000.0)
        pairs += chain
    force.createExceptionsFromBonds(pairs, 0.8, 0.5)
    system.addForce(bonds)
    system.addForce(force)
    return system


def context_of(system, positions, platform="Reference", edge=EDGE, **values):
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName(platform)
    )
    context.setPeriodicBoxVectors(*edge * np.eye(3))
    context.setPositions(positions)
    for name, value in values.items():
        context.setParameter(name, value)
    return context


def energy_of(context, groups=-1) -> float:
    return context.getState(energy=True, groups=groups).getPotentialEnergy()._value


def forces_of(context) -> np.ndarray:
    return np.array(context.getState(forces=True).getForces(asNumpy=True)._value)


def at(sterics: float, electrostatics: float) -> dict[str, float]:
    return dict(zip(PARAMETERS, (sterics, electrostatics), strict=True))


# Both ends


@pytest.mark.parametrize("platform", ["Reference", "CPU"])
@pytest.mark.parametrize("region", [REGION, TWO], ids=["one", "two"])
@pytest.mark.parametrize("switch", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_coupled_is_the_original(method, switch, region, platform):
    """At two volumes, as the dispersion correction depends on it."""
    original = system_of(method, switch=switch)
    before = openmm.XmlSerializer.serialize(original)
    decoupled = decouple(original, region)
    assert openmm.XmlSerializer.serialize(original) == before
    edges = [EDGE, 1.05 * EDGE] if method in PERIODIC else [EDGE]
    for edge in edges:
        contexts = [context_of(s, liquid(), platform, edge) for s in (original, decoupled)]
        energies = [energy_of(context) for context in contexts]
        assert energies[1] == pytest.approx(energies[0], abs=TOLERANCES[platform])
        forces = [forces_of(context) for context in contexts]
        np.testing.assert_allclose(forces[1], forces[0], atol=100 * TOLERANCES[platform])
    assert len(contexts[1].getMolecules()) == 27
    assert dict(contexts[1].getParameters()) == at(1.0, 1.0)


@pytest.mark.parametrize("platform", ["Reference", "CPU"])
@pytest.mark.parametrize("method", METHODS)
def test_decoupled_is_the_sum_of_the_parts(method, platform):
    """With Ewald sums, the region is in vacuum, without its periodic images."""
    decoupled = decouple(system_of(method, tail=False), REGION)
    whole = context_of(decoupled, liquid(), platform, **at(0.0, 0.0))
    alone = system_of("NoCutoff" if method in ("Ewald", "PME") else method, range(1), tail=False)
    rest = system_of(method, range(1, 27), tail=False)
    parts = [
        context_of(alone, liquid()[:SIZE], platform),
        context_of(rest, liquid()[SIZE:], platform),
    ]
    energy = sum(energy_of(context) for context in parts)
    assert energy_of(whole) == pytest.approx(energy, abs=TOLERANCES[platform])
    forces = np.concatenate([forces_of(context) for context in parts])
    np.testing.assert_allclose(forces_of(whole), forces, atol=100 * TOLERANCES[platform])


@pytest.mark.parametrize("platform", ["Reference", "CPU"])
@pytest.mark.parametrize("method", METHODS)
def test_parts_do_not_feel_each_other(method, platform):
    decoupled = decouple(system_of(method), REGION)
    before = context_of(decoupled, liquid(), platform, **at(0.0, 0.0))
    moved = liquid().copy()
    moved[:SIZE] += liquid()[SIZE] - liquid()[0] + 0.01  # into another molecule
    after = context_of(decoupled, moved, platform, **at(0.0, 0.0))
    assert energy_of(after) == pytest.approx(energy_of(before), abs=TOLERANCES[platform])
    np.testing.assert_allclose(forces_of(after), forces_of(before), atol=1e-2)


@pytest.mark.parametrize("switch", [False, True])
@pytest.mark.parametrize("method", PERIODIC)
def test_dispersion_correction_of_the_parts_remains(method, switch):
    def correction(change) -> float:
        energies = []
        for tail in (True, False):
            system = system_of(method, switch=switch, tail=tail)
            energies.append(energy_of(change(system)))
        return energies[0] - energies[1]

    def only(atoms):
        def change(system):
            force = system.getForce(1)
            for i in set(range(27 * SIZE)).difference(atoms):
                charge, sigma, _ = force.getParticleParameters(i)
                force.setParticleParameters(i, charge, sigma, 0.0)
            return context_of(system, liquid())

        return change

    found = correction(lambda s: context_of(decouple(s, TWO), liquid(), **at(0.0, 0.0)))
    rest = set(range(27 * SIZE)).difference(TWO)
    parts = [correction(only(atoms)) for atoms in (TWO, rest)]
    assert parts[0] < -1e-3
    assert found == pytest.approx(sum(parts), abs=1e-6)


# Between the ends


@pytest.mark.parametrize("platform", ["Reference", "CPU"])
@pytest.mark.parametrize("values", [(1.0, 1.0), (1.0, 0.3), (0.6, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("method", METHODS)
def test_derivatives_are_those_of_the_energy(method, values, platform):
    context = context_of(decouple(system_of(method), TWO), liquid(), platform, **at(*values))
    found = energy_derivatives(context)
    assert set(found) == set(PARAMETERS)
    assert dict(context.getParameters()) == at(*values)
    h = 2e-3 if platform == "Reference" else 1e-2
    for name, value in at(*values).items():
        energies = {}
        for k in (-2, -1, 1, 2):
            context.setParameter(name, value + k * h)
            energies[k] = energy_of(context)
        context.setParameter(name, value)
        slope = (8 * (energies[1] - energies[-1]) - energies[2] + energies[-2]) / (12 * h)
        rough = (1e-6, 2e-5) if platform == "Reference" else (1e-3, 0.1)
        assert found[name] == pytest.approx(slope, rel=rough[0], abs=rough[1])
        assert abs(slope) > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_forces_are_those_of_the_energy(method):
    context = context_of(decouple(system_of(method), TWO), liquid(), **at(0.4, 0.7))
    forces = forces_of(context)
    h = 1e-5
    for atom in (0, 3, 42, 60):
        for axis in range(3):
            energies = []
            for sign in (1, -1):
                moved = liquid().copy()
                moved[atom, axis] += sign * h
                context.setPositions(moved)
                energies.append(energy_of(context))
            slope = (energies[1] - energies[0]) / (2 * h)
            assert forces[atom, axis] == pytest.approx(slope, rel=1e-4, abs=0.1)


def test_reciprocal_space_may_have_its_own_group():
    system = system_of("PME")
    system.getForce(1).setReciprocalSpaceForceGroup(5)
    contexts = [
        context_of(decouple(s, REGION), liquid(), **at(1.0, 0.3)) for s in (system_of(), system)
    ]
    expected, found = map(energy_derivatives, contexts)
    assert found == pytest.approx(expected, rel=1e-9)
    assert abs(energy_of(contexts[1], {5})) > 1


def test_decoupled_systems_are_written_and_read():
    system = decouple(system_of("PME"), TWO)
    read = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    contexts = [context_of(s, liquid(), **at(0.4, 0.7)) for s in (system, read)]
    assert energy_of(contexts[0]) == energy_of(contexts[1])
    assert energy_derivatives(contexts[0]) == energy_derivatives(contexts[1])


def test_the_soft_core_is_that_of_the_docstring():
    system = openmm.System()
    force = Nonbonded()
    for sigma, epsilon in ((0.3, 0.5), (0.36, 0.8)):
        system.addParticle(1.0)
        force.addParticle(0.0, sigma, epsilon)
    system.addForce(force)
    context = context_of(decouple(system, [1]), np.zeros((2, 3)))
    sigma6, epsilon = 0.33**6, 0.4**0.5
    for value, r in itertools.product((0.0, 0.01, 0.5, 0.99), (0.001, 0.01, 0.2, 0.35, 0.5)):
        context.setPositions([[0, 0, 0], [r, 0, 0]])
        context.setParameter("lambda_sterics", value)
        x = sigma6 / (0.5 * (1 - value) * sigma6 + r**6)
        assert energy_of(context) == pytest.approx(4 * epsilon * value * x * (x - 1), rel=1e-9)
        slope = energy_derivatives(context)["lambda_sterics"]
        rise = 0.5 * sigma6 * value / (0.5 * (1 - value) * sigma6 + r**6) * (2 * x - 1)
        assert slope == pytest.approx(4 * epsilon * x * (x - 1 + rise), rel=1e-9)


# What is refused


def with_site(system):
    system.setVirtualSite(2, openmm.TwoParticleAverageSite(0, 1, 0.5, 0.5))


def with_site_outside(system):
    system.setVirtualSite(SIZE, openmm.TwoParticleAverageSite(0, SIZE + 1, 0.5, 0.5))


def with_force(make):
    def change(system):
        system.addForce(make(system.getNumParticles()))

    return change


def generalized_born(n_atoms):
    force = openmm.GBSAOBCForce()
    for _ in range(n_atoms):
        force.addParticle(0.1, 0.15, 0.8)
    return force


def custom_nonbonded(n_atoms):
    force = openmm.CustomNonbondedForce("1/r")
    for _ in range(n_atoms):
        force.addParticle([])
    return force


def python_force(_):
    return openmm.PythonForce(_no_energy)


def _no_energy(_):
    return 0.0, np.zeros((27 * SIZE, 3))


def python_force_of_both(n_atoms):
    force = python_force(n_atoms)
    force.setParticles([0, 1, SIZE])
    return force


def variable(_):
    bonds = openmm.HarmonicBondForce()
    bonds.addBond(0, SIZE, 0.1, 1.0)
    force = openmm.CustomCVForce("2*bonds")
    force.addCollectiveVariable("bonds", bonds)
    return force


def angle(_):
    force = openmm.HarmonicAngleForce()
    force.addAngle(SIZE - 2, SIZE - 1, SIZE, 2.0, 1.0)
    return force


def torsion(_):
    force = openmm.CMAPTorsionForce()
    force.addMap(2, [0.0] * 4)
    force.addTorsion(0, 4, 6, 7, 8, 6, 7, 8, 9)
    return force


def offset(system):
    force = system.getForce(1)
    force.addGlobalParameter("scale", 1.0)
    force.addParticleParameterOffset("scale", 30, 1.0, 0.0, 0.0)


def tied(system):
    system.addConstraint(0, SIZE, 0.1)


REFUSED = {
    "angle": (with_force(angle), r"a term of the HarmonicAngleForce connects atom 3 of the region"),
    "born": (with_force(generalized_born), "a GBSAOBCForce may couple region and surroundings"),
    "cmap": (with_force(torsion), "a term of the CMAPTorsionForce connects atom 4"),
    "constraint": (tied, "a constraint connects atom 0 of the region with atom 5 outside it"),
    "custom": (with_force(custom_nonbonded), "a CustomNonbondedForce may couple region"),
    "direct": (lambda s: s.getForce(1).setIncludeDirectSpace(False), "leaves out direct space"),
    "exception": (lambda s: s.getForce(1).addException(1, 7, 0, 1, 0), "an exception of the Nonb"),
    "ljpme": (lambda s: s.getForce(1).setNonbondedMethod(Nonbonded.LJPME), "LJPME cannot be"),
    "none": (lambda s: s.removeForce(1), "has no NonbondedForce, which is what decouple scales"),
    "offset": (offset, "has parameter offsets already"),
    "python": (with_force(python_force), "a PythonForce acts on all atoms"),
    "python of both": (with_force(python_force_of_both), "a PythonForce acts on atoms of the reg"),
    "site": (with_site, "particle 2 is a virtual site of the region"),
    "site outside": (with_site_outside, "particle 5 is a virtual site of the region"),
    "two": (lambda s: s.addForce(Nonbonded(s.getForce(1))), "has 2 NonbondedForces"),
    "variable": (with_force(variable), "a term of the HarmonicBondForce connects atom 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_scale_is_refused(name):
    change, message = REFUSED[name]
    system = system_of()
    change(system)
    with pytest.raises(InputError, match=message) as caught:
        decouple(system, REGION)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        ([], "atoms is empty: name those of a molecule"),
        ([0, 135], "there is no particle 135: the atoms are 0 to 134"),
        ([-1], "there is no particle -1"),
        ([1, 1], "atoms names atom 1 more than once"),
        ([0.5], "atoms must be a list of indices"),
        (None, "atoms must be a list of indices"),
        (3, "atoms must be a list of indices"),
        ("0", "atoms must be a list of indices"),
        (np.arange(135) < 5, "atoms must be a list of indices"),
        (range(135), "atoms names all particles"),
        ([0, 1], "a term of the HarmonicBondForce connects atom 1 of the region with atom 2"),
    ],
)
def test_bad_regions_are_refused(atoms, message):
    with pytest.raises(InputError, match=message) as caught:
        decouple(system_of(), atoms)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_only_systems_are_decoupled():
    with pytest.raises(InputError, match=r"takes an openmm\.System, not NonbondedForce"):
        decouple(system_of().getForce(1), REGION)


def test_a_system_is_decoupled_once():
    system = decouple(system_of(), REGION)
    with pytest.raises(InputError, match="has a parameter lambda_"):
        decouple(system, range(SIZE, 2 * SIZE))
    context = context_of(system_of(), liquid())
    with pytest.raises(InputError, match="is not decoupled: make it by decouple"):
        energy_derivatives(context)


def test_forces_that_keep_to_one_side_are_kept():
    system = system_of()
    system.addForce(openmm.MonteCarloBarostat(1.0, 300.0))
    system.addForce(openmm.CMMotionRemover())
    force = openmm.RMSDForce(liquid(), list(REGION))
    system.addForce(force)
    system.setVirtualSite(SIZE, openmm.TwoParticleAverageSite(SIZE + 1, SIZE + 2, 0.5, 0.5))
    decoupled = decouple(system, REGION)
    names = [force.getName() for force in decoupled.getForces()]
    assert names[:5] == [force.getName() for force in system.getForces()]


@pytest.mark.parametrize("method", METHODS)
def test_a_charged_region_warns_with_ewald_sums(method, recwarn):
    decoupled = decouple(system_of(method, charge=-1.0), REGION)
    assert len(recwarn) == (method in ("Ewald", "PME"))
    if recwarn:
        assert recwarn[0].category is DecouplingWarning
        assert "the region has a charge of -1: with Ewald sums" in str(recwarn[0].message)
        assert recwarn[0].filename == __file__
    energies = [
        energy_of(context_of(s, liquid())) for s in (system_of(method, charge=-1.0), decoupled)
    ]
    assert energies[1] == pytest.approx(energies[0], abs=TOLERANCES["Reference"])
