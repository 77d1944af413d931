"""Molecules of the model's atoms in OpenMM: barostats and files keep them whole, wrapped or not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import mlff_triton
from mlff_triton import create_openmm_force
from mlff_triton.calculators import create_openmm_bonds
from mlff_triton.errors import InputError
from tests.support.charged import charged_model
from tests.support.tensornets import model_of

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
from openmm import app  # noqa: E402

from mlff_triton.calculators.openmm import molecules as molecules_module  # noqa: E402
from mlff_triton.calculators.openmm.atoms import Selection  # noqa: E402
from mlff_triton.calculators.openmm.molecules import BondForest, WholeMolecules  # noqa: E402
from mlff_triton.calculators.openmm.recipe import Recipe, lasting_model  # noqa: E402
from mlff_triton.calculators.openmm.torch_force import OpenMMSystem  # noqa: E402

PEPTIDE = (
    Path(mlff_triton.__file__).parents[1] / "examples" / "structures" / "alanine_dipeptide.pdb"
)
BOX = 2.0
MODEL = model_of(elements=(1, 6, 7, 8), hidden_channels=8, num_rbf=6, cutoff_upper=4.0)


def peptide(n_copies: int = 1) -> tuple[app.Topology, np.ndarray]:
    """Return molecules in a periodic box of 2 nm, 0.7 nm apart, and their positions in nm."""
    pdb = app.PDBFile(str(PEPTIDE))
    one = np.array(pdb.positions._value)
    modeller = app.Modeller(pdb.topology, pdb.positions)
    for _ in range(n_copies - 1):
        modeller.add(pdb.topology, pdb.positions)
    modeller.topology.setPeriodicBoxVectors(BOX * np.eye(3))
    positions = [one + np.array([0.7 * k, 0, 0]) for k in range(n_copies)]
    return modeller.topology, np.concatenate(positions)


def system_of(topology: app.Topology, *forces: openmm.Force) -> openmm.System:
    system = openmm.System()
    for atom in topology.atoms():
        system.addParticle(atom.element.mass)
    system.setDefaultPeriodicBoxVectors(*(BOX * np.eye(3)))
    for force in forces:
        system.addForce(force)
    return system


def context_of(system: openmm.System, platform: str = "Reference") -> openmm.Context:
    integrator = openmm.VerletIntegrator(0.0005)
    return openmm.Context(system, integrator, openmm.Platform.getPlatformByName(platform))


def molecules_of(system: openmm.System) -> list[int]:
    return sorted(len(found) for found in context_of(system).getMolecules())


def energy_and_forces(context: openmm.Context, positions: np.ndarray) -> tuple[float, np.ndarray]:
    context.setPositions(positions)
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def wrapped(positions: np.ndarray, seed: int) -> np.ndarray:
    """Return positions in other images, each atom in one of its own."""
    return positions + BOX * np.random.default_rng(seed).integers(-2, 3, positions.shape)


def test_bonds_tell_openmm_the_molecules() -> None:
    topology, positions = peptide(2)
    force = create_openmm_force(topology, MODEL, device="cpu", dtype="float64")
    bonds = create_openmm_bonds(topology)
    system = system_of(topology, force, bonds)
    assert molecules_of(system) == [22, 22]
    assert molecules_of(system_of(topology, create_openmm_bonds(topology, range(22)))) == [
        *[1] * 22,
        22,
    ]
    energy, forces = energy_and_forces(
        context_of(system_of(topology, create_openmm_bonds(topology))), positions
    )
    assert energy == 0
    assert not forces.any()


@pytest.mark.parametrize("platform", ["Reference", "CPU"])
def test_systems_of_openmm_ml_have_the_bonds(platform: str) -> None:
    pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
    from openmmml import MLPotential

    topology, positions = peptide()
    potential = MLPotential("mlff-triton", modelPath=MODEL)
    options = {"device": "cpu", "dtype": "float64"}
    system = potential.createSystem(topology, **options)
    assert molecules_of(system) == [22]
    alone = system_of(topology, create_openmm_force(topology, MODEL, **options))
    expected = energy_and_forces(context_of(alone, platform), positions)
    found = energy_and_forces(context_of(system, platform), positions)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-3)
    state = context_of(system)
    state.setPositions(positions - positions.mean(axis=0) + BOX)  # across a corner
    kept = state.getState(positions=True, enforcePeriodicBox=True).getPositions(asNumpy=True)
    assert np.ptp(kept._value, axis=0).max() < 1.2  # not torn at faces


def test_mixed_systems_have_the_bonds() -> None:
    pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
    from openmmml import MLPotential

    topology, positions = peptide()
    force_field = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
    modeller = app.Modeller(topology, positions * openmm.unit.nanometer)
    modeller.addSolvent(force_field, boxSize=openmm.Vec3(BOX, BOX, BOX))
    classical = force_field.createSystem(modeller.topology, nonbondedMethod=app.PME,
                                         nonbondedCutoff=0.9)  # fmt: skip
    potential = MLPotential("mlff-triton", modelPath=MODEL)
    mixed = potential.createMixedSystem(modeller.topology, classical, list(range(22)), device="cpu")
    sizes = molecules_of(mixed)
    assert sizes[-1] == 22
    assert set(sizes[:-1]) <= {1, 3}
    assert sizes.count(1) <= 2  # ions


@pytest.mark.parametrize(("n_copies", "particles"), [(1, None), (1, range(22)), (2, range(44))])
def test_wrapped_positions_are_made_whole_without_periodicity(
    n_copies: int, particles: range | None
) -> None:
    topology, positions = peptide(n_copies)
    options = {"device": "cpu", "dtype": "float64", "periodic": False, "particles": particles}
    context = context_of(system_of(topology, create_openmm_force(topology, MODEL, **options)))
    energy, forces = energy_and_forces(context, positions)
    for seed in range(3):
        found = energy_and_forces(context, wrapped(positions, seed))
        np.testing.assert_allclose(found[0], energy, rtol=1e-11)
        np.testing.assert_allclose(found[1], forces, atol=1e-5)


def test_molecules_in_vacuum_stay_where_they_are() -> None:
    """The box of a crystal may be smaller than the distance of molecules in a file."""
    topology, positions = peptide(2)
    positions[22:, 0] += BOX - 0.7  # an image of the first one
    force = create_openmm_force(topology, MODEL, device="cpu", dtype="float64", periodic=False)
    assert not force.usesPeriodicBoundaryConditions()
    energy, _ = energy_and_forces(context_of(system_of(topology, force)), positions)
    topology, positions = peptide()
    force = create_openmm_force(topology, MODEL, device="cpu", dtype="float64", periodic=False)
    single, _ = energy_and_forces(context_of(system_of(topology, force)), positions)
    np.testing.assert_allclose(energy, 2 * single, rtol=1e-3)


def test_tensors_are_made_whole_as_arrays_are() -> None:
    rng = np.random.default_rng(3)
    box = np.array([[3.0, 0, 0], [0.4, 2.5, 0], [-0.3, 0.7, 2.0]])
    chain = np.cumsum(rng.normal(0, 0.1, (40, 3)), axis=0)
    names = rng.permutation(40)
    bonds = np.stack([names[:-1], names[1:]], axis=1)[rng.permutation(39)]
    positions = np.empty_like(chain)
    positions[names] = chain
    torn = positions + rng.integers(-3, 4, positions.shape) @ box
    molecules = WholeMolecules(bonds, 40, gathers=False)
    whole = molecules.whole(torn, box, 1.0)
    np.testing.assert_allclose(whole - whole[0], positions - positions[0], atol=1e-12)
    on_device = molecules.whole_on_device(torch.from_numpy(torn), torch.from_numpy(box))
    np.testing.assert_allclose(on_device.numpy(), whole, atol=1e-12)


@pytest.mark.parametrize("n_atoms", [1, 2, 5])
def test_atoms_without_bonds_are_nearest_to_the_first(n_atoms: int) -> None:
    molecules = WholeMolecules(np.zeros((0, 2), dtype=np.int64), n_atoms, gathers=True)
    positions = np.random.default_rng(0).uniform(-0.4, 0.4, (n_atoms, 3))
    found = molecules.whole(positions + BOX * np.arange(n_atoms)[:, None], BOX * np.eye(3), 0.4)
    np.testing.assert_allclose(found, positions, atol=1e-12)


def carbons(
    n_chain: int, n_others: int = 0, bonded: bool = True
) -> tuple[app.Topology, np.ndarray]:
    """Return a straight chain in the box, and single atoms beside its end, with positions in nm."""
    topology = app.Topology()
    residue = topology.addResidue("C", topology.addChain())
    atoms = [
        topology.addAtom(f"C{k}", app.Element.getBySymbol("C"), residue)
        for k in range(n_chain + n_others)
    ]
    for k in range(1, n_chain if bonded else 0):
        topology.addBond(atoms[k - 1], atoms[k])
    topology.setPeriodicBoxVectors(BOX * np.eye(3))
    chain = np.stack([0.15 * np.arange(n_chain), *np.zeros((2, n_chain))], axis=1)
    others = np.array([chain[-1] + [0.0, 0.3, 0.3 * k] for k in range(n_others)])
    return topology, np.concatenate([chain, others.reshape(-1, 3)])


@pytest.mark.parametrize("route", ["array", "tensor"])
def test_long_molecules_and_their_neighbors_are_computed_as_in_vacuum(route: str) -> None:
    """The neighbor of the end is more than half a box from the first atom of the chain."""
    topology, positions = carbons(9, 2)
    n_atoms = len(positions)
    options = {"particles": range(n_atoms), "device": "cpu", "dtype": "float64"}
    vacuum = create_openmm_force([6] * n_atoms, MODEL, **options)
    expected = energy_and_forces(context_of(system_of(topology, vacuum)), positions)
    for seed in range(2):
        given = wrapped(positions, seed)
        if route == "array":
            force = create_openmm_force(topology, MODEL, periodic=False, **options)
            found = energy_and_forces(context_of(system_of(topology, force)), given)
        else:
            system = tensor_system(topology)
            found = system.step(torch.from_numpy(given), BOX * torch.eye(3, dtype=torch.float64))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-11)
        np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


@pytest.mark.parametrize("route", ["array", "tensor"])
def test_molecules_that_meet_their_images_are_refused(route: str) -> None:
    """Without bonds, both halves of a chain longer than half the box are torn apart."""
    topology, positions = carbons(11, bonded=False)
    options = {"particles": range(11), "device": "cpu", "periodic": False}
    force = create_openmm_force(topology, MODEL, **options)
    if route == "array":
        context = context_of(system_of(topology, force))
        compute = partial(energy_and_forces, context, positions)
    else:
        system = tensor_system(topology, "float32")
        compute = partial(system.step, torch.from_numpy(positions), BOX * torch.eye(3))
    with pytest.raises((InputError, openmm.OpenMMException), match=r"interact across.*periodic=T"):
        compute()


def tensor_system(topology: app.Topology, dtype: str = "float64") -> OpenMMSystem:
    """Return what a TorchForce of all atoms computes, as a part of a System."""
    selection = Selection.of_topology(topology, range(topology.getNumAtoms()))
    fields = vars(selection) | {"model": lasting_model(MODEL), "device": "cpu", "dtype": dtype}
    del fields["names"]
    return OpenMMSystem(Recipe(**fields, box=BOX * np.eye(3)))


@pytest.mark.parametrize("seed", range(3))
def test_only_molecules_within_reach_must_be_nearest(seed: int) -> None:
    """The check agrees with all pairs and all images, in a skewed box."""
    rng = np.random.default_rng(seed)
    box = np.array([[3.0, 0, 0], [1.4, 2.5, 0], [-1.3, 0.9, 2.0]])
    molecules = WholeMolecules(np.array([[0, 1], [2, 3]]), 6, gathers=True)
    steps = np.stack(np.meshgrid(*3 * [np.arange(-3, 4)], indexing="ij"), axis=-1).reshape(-1, 3)
    n_refused = 0
    for _ in range(50):
        points = rng.uniform(-0.6, 0.6, (6, 3)) @ box
        points[[1, 3]] = points[[0, 2]] + 0.1
        apart = points[:, None] - points
        labels = np.array([0, 0, 1, 1, 2, 3])
        images = np.linalg.norm(apart[:, :, None] + steps @ box, axis=3)
        nearest = images.argmin(axis=2)
        wrong = (images.min(axis=2) < 0.5) & steps[nearest].any(axis=2)
        expected = (wrong & (labels[:, None] != labels)).any()
        n_refused += expected
        if expected:
            with pytest.raises(InputError, match="interact across"):
                molecules.check_images(points, box, 0.5)
        else:
            molecules.check_images(points, box, 0.5)
    assert 5 < n_refused < 45


def test_molecules_within_half_a_box_are_nearest_at_any_reach() -> None:
    """As of models whose Coulomb energy has no cutoff."""
    molecules = WholeMolecules(np.zeros((0, 2), dtype=int), 2, gathers=True)
    for apart in ([0.49, -0.49, 0.49], [0.2, 0.51, 0.1]):
        points = BOX * np.array([[0.1, 0.8, 0.1], np.add([0.1, 0.8, 0.1], apart)])
        if max(apart) < 0.5:
            molecules.check_images(points, BOX * np.eye(3), np.inf)
        else:
            with pytest.raises(InputError, match="interact across"):
                molecules.check_images(points, BOX * np.eye(3), np.inf)


def test_setup_takes_time_in_proportion_to_atoms(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search finds all molecules, however many there are."""
    searches = []
    search = molecules_module.breadth_first_order

    def counted(*args: object, **kwargs: object) -> object:
        searches.append(args)
        return search(*args, **kwargs)

    monkeypatch.setattr(molecules_module, "breadth_first_order", counted)
    waters = 3 * np.arange(1000)
    bonds = np.concatenate([np.stack([waters, waters + k], axis=1) for k in (1, 2)])
    WholeMolecules(bonds, 3000, gathers=True)
    assert len(searches) <= 3


@pytest.mark.parametrize("n_atoms", [1, 2, 7, 40])
def test_roots_are_in_the_middle(n_atoms: int) -> None:
    names = np.random.default_rng(n_atoms).permutation(n_atoms)
    forest = BondForest(np.stack([names[:-1], names[1:]], axis=1), n_atoms)
    assert len(forest.roots) == 1
    index = int(np.flatnonzero(names == forest.roots[0])[0])
    assert abs(index - (n_atoms - 1) / 2) <= 0.5


def test_models_that_cannot_be_periodic_name_the_remedy() -> None:
    topology, positions = peptide()
    model = charged_model()
    with pytest.raises(InputError, match=r"cannot be periodic.*pass periodic=False"):
        create_openmm_force(topology, model, device="cpu")
    force = create_openmm_force(topology, model, device="cpu", periodic=False)
    assert np.isfinite(energy_and_forces(context_of(system_of(topology, force)), positions)[0])
