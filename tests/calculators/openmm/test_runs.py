"""Runs of mixed and whole systems: molecules stay whole in files, under barostats, after loads."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import mlff_triton
from tests.support.tensornets import model_of

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
from openmm import app  # noqa: E402
from openmmml import MLPotential  # noqa: E402

PEPTIDE = (
    Path(mlff_triton.__file__).parents[1] / "examples" / "structures" / "alanine_dipeptide.pdb"
)
SIZE = 22
MODEL = model_of(elements=(1, 6, 7, 8), hidden_channels=8, num_rbf=6, cutoff_upper=4.0)
BOXES = {
    "orthorhombic": 3.0 * np.eye(3),
    "triclinic": np.array([[3.0, 0, 0], [1.2, 2.8, 0], [-1.3, 1.1, 2.6]]),
}
KINDS = ["whole", "first", "residues", "interpolated"]
"""All atoms are the model's, or the first peptide, or alanine of both, or the first in part."""


@functools.cache
def force_field() -> app.ForceField:
    return app.ForceField("amber14-all.xml")


@functools.cache
def peptides(box: str = "orthorhombic") -> tuple[app.Topology, np.ndarray]:
    """Return two peptides, the first across a corner of the box, and positions in nm."""
    pdb = app.PDBFile(str(PEPTIDE))
    one = np.array(pdb.positions._value)
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.add(pdb.topology, pdb.positions)
    modeller.topology.setPeriodicBoxVectors(BOXES[box])
    one -= one.mean(axis=0)
    return modeller.topology, np.concatenate([one, one + np.array([0.1, 1.2, 0.1])])


def system_of(kind: str, box: str = "orthorhombic", **options: object) -> openmm.System:
    topology, _ = peptides(box)
    options = {"device": "cpu", "dtype": "float64", "periodic": kind == "whole", **options}
    potential = MLPotential("mlff-triton", modelPath=MODEL)
    if kind == "whole":
        return potential.createSystem(topology, **options)
    classical = force_field().createSystem(topology, constraints=app.HBonds)
    return potential.createMixedSystem(
        topology, classical, part_of(kind), interpolate=kind == "interpolated", **options
    )


def part_of(kind: str) -> list[int]:
    if kind == "residues":
        return [a.index for a in peptides()[0].atoms() if a.residue.name == "ALA"]
    return list(range(SIZE))


def context_of(
    system: openmm.System,
    positions: np.ndarray,
    integrator: openmm.Integrator | None = None,
    platform: str = "Reference",
) -> openmm.Context:
    """Return a context in which the caps of cut bonds, the last particles, are in place."""
    caps = np.zeros((system.getNumParticles() - len(positions), 3))
    integrator = integrator or openmm.VerletIntegrator(0.0005)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName(platform))
    context.setPositions(np.concatenate([positions, caps]))
    context.computeVirtualSites()
    return context


def energy_of(context: openmm.Context) -> float:
    return float(context.getState(energy=True).getPotentialEnergy()._value)


def positions_of(context: openmm.Context) -> np.ndarray:
    n_atoms = len(peptides()[1])
    return context.getState(positions=True).getPositions(asNumpy=True)._value[:n_atoms]


def bond_lengths(positions: np.ndarray) -> np.ndarray:
    bonds = np.array([[atom.index for atom in bond] for bond in peptides()[0].bonds()])
    return np.linalg.norm(positions[bonds[:, 0]] - positions[bonds[:, 1]], axis=1)


@pytest.mark.parametrize(
    ("kind", "platform"), [*((kind, "Reference") for kind in KINDS), ("first", "CPU")]
)
def test_barostats_and_files_keep_molecules_whole(kind: str, platform: str, tmp_path: Path) -> None:
    """Without time to move, atoms move with their molecules only, and the box changes."""
    libdcd = pytest.importorskip("MDAnalysis.lib.formats.libdcd", reason="reads DCD files")
    topology, positions = peptides()
    system = system_of(kind)
    barostat = openmm.MonteCarloBarostat(1.0, 300.0, 1)
    integrator = openmm.VerletIntegrator(1e-9)
    barostat.setRandomNumberSeed(1)
    system.addForce(barostat)
    context = context_of(system, positions, integrator, platform)
    assert sorted(map(len, context.getMolecules())) == [SIZE + (kind == "residues") * 2] * 2
    context.applyConstraints(1e-7)
    start = positions_of(context)
    with (tmp_path / "run.dcd").open("wb") as file:
        dcd = app.DCDFile(file, topology, 0.001)
        for _ in range(2):
            integrator.step(4)
            state = context.getState(positions=True, enforcePeriodicBox=True)
            wrapped = state.getPositions(asNumpy=True)[: len(positions)]
            dcd.writeModel(wrapped, periodicBoxVectors=state.getPeriodicBoxVectors())
    volume = context.getState().getPeriodicBoxVolume()._value
    assert 20 < volume < 40
    assert volume != pytest.approx(27, abs=0.01)
    found = positions_of(context)
    np.testing.assert_allclose(bond_lengths(found), bond_lengths(start), atol=2e-6)
    between = [np.linalg.norm(x[:SIZE].mean(0) - x[SIZE:].mean(0)) for x in (start, found)]
    np.testing.assert_allclose(between[1] / between[0], (volume / 27) ** (1 / 3), rtol=1e-4)
    with libdcd.DCDFile(str(tmp_path / "run.dcd")) as frames:
        written = frames.readframes()
    assert len(written.xyz) == 2
    for frame in written.xyz:  # Å
        np.testing.assert_allclose(bond_lengths(frame / 10), bond_lengths(start), atol=1e-5)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("kind", ["first", "residues"])
def test_wrapped_parts_are_computed_whole(kind: str, box: str) -> None:
    """The model's energy does not depend on the images in which its atoms are given."""
    _, positions = peptides(box)
    system = system_of(kind, box)
    for force in system.getForces():
        force.setForceGroup(int(force.getName() == "mlff_triton"))
    context = context_of(system, positions)
    whole = context.getState(positions=True).getPositions(asNumpy=True)._value
    rng = np.random.default_rng(1)

    def model_energy(given: np.ndarray) -> float:
        context.setPositions(given)
        return float(context.getState(energy=True, groups={1}).getPotentialEnergy()._value)

    energy = model_energy(whole)
    for _ in range(3):
        torn = whole + rng.integers(-1, 2, whole.shape) @ BOXES[box]
        assert model_energy(torn) == pytest.approx(energy, rel=1e-11)


def test_caps_stay_at_their_molecules() -> None:
    """Two capped residues out of reach have one energy, also about half a box apart."""
    _, positions = peptides()
    system = system_of("residues")
    for force in system.getForces():
        force.setForceGroup(int(force.getName() == "mlff_triton"))
    energies = []
    for offset in np.linspace(0.0, 0.8, 9):
        moved = positions.copy()
        moved[SIZE:, 1] += offset
        context = context_of(system, moved)
        state = context.getState(energy=True, groups={1})
        energies.append(state.getPotentialEnergy()._value)
    np.testing.assert_allclose(energies, energies[0], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_states_checkpoints_and_files_give_the_same(kind: str) -> None:
    """A run goes on as it would have, from a checkpoint, a State and Systems and States in XML."""
    _, positions = peptides()
    system = system_of(kind)
    barostat = openmm.MonteCarloBarostat(1.0, 300.0, 1)
    barostat.setRandomNumberSeed(1)
    system.addForce(barostat)
    first = context_of(system, positions)
    first.getIntegrator().step(3)
    everything = {"positions": True, "velocities": True, "parameters": True}
    state, checkpoint = first.getState(**everything), first.createCheckpoint()
    energy = energy_of(first)
    first.getIntegrator().step(2)
    end = positions_of(first)
    first.loadCheckpoint(checkpoint)
    assert energy_of(first) == energy
    first.getIntegrator().step(2)
    np.testing.assert_array_equal(positions_of(first), end)
    read = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    state = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(state))
    second = context_of(read, positions)
    second.setState(state)
    assert energy_of(second) == pytest.approx(energy, rel=1e-12)


@pytest.mark.parametrize("kind", ["first", "residues"])
def test_interpolation_ends_at_both_systems(kind: str) -> None:
    """Forces between the ends are those of the energy. openmm-ml's Coulomb constant is rounded."""
    topology, positions = peptides()
    part, options = part_of(kind), {"device": "cpu", "dtype": "float64"}
    classical = force_field().createSystem(topology)
    potential = MLPotential("mlff-triton", modelPath=MODEL)
    systems = [
        classical,
        potential.createMixedSystem(topology, classical, part, **options),
        potential.createMixedSystem(topology, classical, part, interpolate=True, **options),
    ]
    contexts = [context_of(system, positions) for system in systems]
    zero, one, between = contexts
    if kind == "first":  # of several molecules, openmm-ml makes one when it interpolates
        molecules = [sorted(map(len, context.getMolecules())) for context in contexts]
        assert molecules == 3 * [[SIZE, SIZE]]
    for value, expected in ((0.0, zero), (1.0, one)):
        between.setParameter("lambda_interpolate", value)
        assert energy_of(between) == pytest.approx(energy_of(expected), abs=1e-4)
        forces = [_forces_of(context)[: len(positions)] for context in (between, expected)]
        np.testing.assert_allclose(forces[0], forces[1], atol=1e-3)
    between.setParameter("lambda_interpolate", 0.3)
    forces = _forces_of(between)
    for atom in part[:3]:
        np.testing.assert_allclose(forces[atom, 1], _slope(between, atom), rtol=1e-4, atol=0.1)


def _forces_of(context: openmm.Context) -> np.ndarray:
    return context.getState(forces=True).getForces(asNumpy=True)._value


def _slope(context: openmm.Context, atom: int, by: float = 1e-5) -> float:
    """Return the force along y by energies of displaced positions."""
    positions = context.getState(positions=True).getPositions(asNumpy=True)._value
    energies = []
    for sign in (1, -1):
        moved = positions.copy()
        moved[atom, 1] += sign * by
        context.setPositions(moved)
        context.computeVirtualSites()
        energies.append(energy_of(context))
    context.setPositions(positions)
    return (energies[1] - energies[0]) / (2 * by)
