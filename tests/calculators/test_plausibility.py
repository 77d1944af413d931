"""Structures that nobody means, and chemistry that the shipped model does not know."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.collections import g2
from ase.data import covalent_radii
from ase.io import read

from mlff_triton import Ensemble, TensorNetCalculator, create_openmm_force, load_model
from mlff_triton.calculators import _plausibility
from mlff_triton.calculators._screening import Screening
from mlff_triton.calculators._session import Session
from mlff_triton.engine.batch import Batch
from mlff_triton.errors import InputError
from mlff_triton.model.known_domain import TENSORNET_GFN2, UnknownChemistryWarning, bond_name
from mlff_triton.testing import water_box
from tests.support.tensornets import model_of
from tests.support.torch_sim_double import doubled

ROOT = Path(__file__).parents[2]
SHIPPED = ("default", "tensornet-gfn2")
TRAINED_ON = ROOT / "examples" / "training" / "structures.xyz"


def without_hydrogen(atoms: Atoms) -> Atoms:
    return atoms[atoms.numbers != 1]


def azomethane() -> Atoms:
    atoms = molecule("trans-butane")
    carbons = np.flatnonzero(atoms.numbers == 6)
    center = [c for c in carbons if (atoms.get_distances(c, carbons) < 1.7).sum() == 3]
    lost = [
        h for h in np.flatnonzero(atoms.numbers == 1) if atoms.get_distances(h, center).min() < 1.3
    ]
    atoms.numbers[center] = 7
    del atoms[lost]
    return atoms


UNKNOWN = {
    "diamond": (bulk("C", cubic=True), "no bond like that of atoms"),
    "oxygen": (Atoms("O2", [[0, 0, 0], [0, 0, 1.21]]), "O bonded to O and O bonded to O"),
    "azo compound": (azomethane(), "N bonded to C, N"),
    "protein without hydrogen": (without_hydrogen(molecule("CH3CH2OH")), "PDBFixer"),
    "radical": (molecule("CH3"), "9 electrons, an odd number"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_chemistry_is_warned_of_once(name):
    atoms, message = UNKNOWN[name]
    atoms = atoms.copy()
    atoms.calc = TensorNetCalculator("tensornet-gfn2", device="cpu")
    with pytest.warns(UnknownChemistryWarning, match=message) as caught:
        atoms.get_potential_energy()
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoms.positions += 0.01 * np.sin(np.arange(3.0 * len(atoms))).reshape(-1, 3)
        atoms.get_potential_energy()
        atoms.calc.get_potential_energy(atoms[::-1])


@pytest.mark.parametrize("model", [*SHIPPED, "default-charged"])
@pytest.mark.parametrize("name", ["CH3CH2OH", "C6H6", "H2O", "CH3CONH2", "C3H4_D2d", "CO2", "CO"])
def test_known_molecules_pass(model, name):
    TensorNetCalculator(model, device="cpu").get_potential_energy(molecule(name))


@pytest.mark.parametrize("model", SHIPPED)
def test_known_liquids_pass(model):
    TensorNetCalculator(model, device="cpu").get_potential_energy(water_box(8))


@pytest.mark.parametrize("name", ["protein without hydrogen", "radical", "diamond"])
def test_the_default_doubts_what_it_is_uncertain_about(name):
    atoms = UNKNOWN[name][0].copy()
    atoms.calc = TensorNetCalculator(device="cpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        atoms.get_potential_energy()
    assert any("the model expects an error of" in str(one.message) for one in caught)


def test_a_molecule_that_the_default_gets_wrong_is_named():
    atoms = molecule("O2")
    atoms.calc = TensorNetCalculator(device="cpu")
    with pytest.warns(UnknownChemistryWarning, match="known to be wrong for .* by itself") as found:
        energy = atoms.get_potential_energy()
    assert len(found) == 1
    (remarks,) = Screening(Session("default", "cpu")).look_at_many([atoms])
    assert "known to be wrong" in remarks.chemistry
    shorter = atoms.copy()
    shorter.positions[1] *= 0.93
    shorter.calc = atoms.calc
    assert shorter.get_potential_energy() < energy  # as the remark says


@pytest.mark.parametrize(("name", "length"), [("S2", 1.89), ("Br2", 2.28)])
def test_molecules_that_the_charged_model_gets_wrong_are_named(name, length):
    atoms = Atoms(name, [[0, 0, 0], [0, 0, length]])
    atoms.calc = TensorNetCalculator("default-charged", device="cpu")
    with pytest.warns(UnknownChemistryWarning, match="known to be wrong for .* by itself"):
        atoms.get_potential_energy()


def test_models_without_a_record_do_not_warn():
    calc = TensorNetCalculator(model_of(num_layers=1), device="cpu")
    assert calc.session.engine.known_domain is None
    calc.get_potential_energy(molecule("CH3"))


def test_the_default_is_for_closed_shells_without_charge():
    domain = load_model("default").known_domain
    assert (domain.charges, domain.closed_shells, domain.bonds) == ((0,), True, None)


@pytest.mark.parametrize(
    ("charge", "message"),
    [
        (0, "17 electrons, an odd number, .*: check the total charge"),
        (-1, None),
        (1, None),  # a closed shell, too, and no reason to doubt it
        (-2, "19 electrons, an odd number"),
        (-3, r"a total charge of -3, and the model learned from those of -2, -1, 0, 1, 2"),
    ],
)
def test_total_charges_are_judged(charge, message):
    methoxide = molecule("CH3O")
    methoxide.info["charge"] = charge
    methoxide.calc = TensorNetCalculator("default-charged", device="cpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        methoxide.get_potential_energy()
    remarks = [str(one.message) for one in caught if "expects an error" not in str(one.message)]
    assert len(remarks) == (message is not None)
    assert message is None or re.search(message, remarks[0])
    (remark,) = Screening(Session("default-charged", "cpu")).look_at_many([methoxide])
    assert bool(remark.chemistry) == (message is not None)


def test_the_charged_model_is_for_closed_shells_with_charges():
    domain = load_model("default-charged").known_domain
    assert (domain.charges, domain.closed_shells, domain.bonds) == ((-2, -1, 0, 1, 2), True, None)


def test_the_record_belongs_to_the_shipped_model():
    model = load_model("tensornet-gfn2")
    assert model.known_domain is TENSORNET_GFN2
    assert Ensemble([model, model]).known_domain is TENSORNET_GFN2
    other = model_of()
    assert Ensemble([model, other]).known_domain is other.known_domain is None


def test_the_record_holds_all_bonds_of_the_training_molecules():
    trained, unknown = set(), set()
    for atoms in read(TRAINED_ON, ":"):
        symbols = atoms.get_chemical_symbols()
        neighbors: list[list[str]] = [[] for _ in symbols]
        pairs = [tuple(map(int, pair.split("-"))) for pair in str(atoms.info["bonds"]).split()]
        for i, j in pairs:
            neighbors[i].append(symbols[j])
            neighbors[j].append(symbols[i])
        bonds = {bond_name(symbols[i], neighbors[i], symbols[j], neighbors[j]) for i, j in pairs}
        if atoms.info["split"] == "train":
            trained |= bonds
        elif not bonds <= TENSORNET_GFN2.bonds:
            unknown.add(atoms.info["name"])
    assert trained == TENSORNET_GFN2.bonds
    assert unknown == {"azobenzene", "acetoxime"}


@pytest.mark.parametrize("model", ["default", model_of(num_layers=1)])
def test_nanometers_read_as_angstrom_are_refused(model):
    atoms = molecule("CH3CH2OH")
    calc = TensorNetCalculator(model, device="cpu")
    expected = calc.get_potential_energy(atoms)
    small = atoms.copy()
    small.positions /= 10
    fresh = TensorNetCalculator(model, device="cpu")
    with pytest.raises(InputError, match=r"are only 0\.\d+ Å apart: check .* not nm"):
        fresh.get_potential_energy(small)
    assert fresh.get_potential_energy(atoms) == expected


def test_images_are_looked_at_when_a_molecule_becomes_periodic():
    atoms = molecule("CH4")
    atoms.cell = [1.3, 1.3, 1.3]
    atoms.calc = TensorNetCalculator("default", device="cpu")
    energy = atoms.get_potential_energy()
    atoms.pbc = True
    with pytest.raises(InputError, match=r"are only 0\.\d+ Å apart"):
        atoms.get_potential_energy()
    atoms.pbc = False
    assert atoms.get_potential_energy() == energy


def in_openmm(model, atoms: Atoms) -> Callable[[], object]:
    """Return a step of a PythonForce."""
    openmm = pytest.importorskip("openmm")
    system = openmm.System()
    for mass in atoms.get_masses():
        system.addParticle(mass)
    system.addForce(create_openmm_force(atoms.numbers, model=model, device="cpu"))
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(atoms.positions / 10)
    return lambda: context.getState(energy=True)


def in_openmm_torch(model, atoms: Atoms) -> Callable[[], object]:
    """Return a call of the module of a TorchForce."""
    pytest.importorskip("openmm")
    from mlff_triton.calculators.openmm.recipe import Recipe, lasting_model
    from mlff_triton.calculators.openmm.torch_force import OpenMMSystem

    system = OpenMMSystem(Recipe(lasting_model(model), atoms.numbers, device="cpu"))
    return lambda: system.step(torch.tensor(atoms.positions / 10), None)


def in_torch_sim(model, atoms: Atoms) -> Callable[[], object]:
    """Return a call of a model of TorchSim, with two systems."""
    from mlff_triton.calculators.torch_sim_model import TorchSimModel

    two = Batch.concatenate([Batch.of(atoms.numbers, atoms.positions)] * 2)
    state = {
        "positions": torch.from_numpy(two.positions),
        "cell": torch.zeros(2, 3, 3, dtype=torch.float64),
        "pbc": False,
        "atomic_numbers": torch.from_numpy(two.numbers),
        "system_idx": torch.from_numpy(two.system),
    }
    calculator = TorchSimModel(model, device="cpu")
    return lambda: calculator(state)


def many(model, atoms: Atoms) -> Callable[[], object]:
    """Return a computation of many images."""
    calculator = TensorNetCalculator(model, device="cpu")
    return lambda: calculator.calculate_many([molecule("H2O"), atoms, atoms])


def moved(model, atoms: Atoms) -> Callable[[], object]:
    """Return the preparation of a simulation."""
    calculator = TensorNetCalculator(model, device="cpu")
    return lambda: calculator.dynamics([molecule("H2O"), atoms])


@pytest.fixture(params=[many, moved, in_openmm, in_openmm_torch, in_torch_sim])
def front_end(request):
    is_double = request.param is in_torch_sim and find_spec("torch_sim") is None
    with doubled() if is_double else nullcontext():
        yield request.param


def test_all_front_ends_warn_once(front_end):
    run = front_end("tensornet-gfn2", Atoms("O2", [[0, 0, 0], [0, 0, 1.21]]))
    with pytest.warns(UnknownChemistryWarning, match="O bonded to O and O bonded to O") as caught:
        run()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


def test_all_front_ends_refuse_nanometers_read_as_angstrom(front_end):
    atoms = molecule("CH3CH2OH")
    atoms.positions /= 10
    with pytest.raises(Exception, match=r"are only 0\.\d+ Å apart: check .* not nm"):
        front_end(model_of(num_layers=1), atoms)()


def test_systems_of_the_same_atoms_are_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(_plausibility, "check_distances", checked.append)
    calculator = TensorNetCalculator(model_of(num_layers=1), device="cpu")
    images = [molecule("H2O"), molecule("CH4"), molecule("H2O")]
    for _ in range(2):
        calculator.calculate_many(images)
    assert [batch.numbers.tolist() for batch in checked] == [[8, 1, 1], [6, 1, 1, 1, 1]]


def names_of_bonds(atoms: Atoms) -> list[tuple[int, int, str]]:
    """Return all bonds with their names, in order."""
    radii = covalent_radii[atoms.numbers]
    limits = TENSORNET_GFN2.bond_factor * (radii[:, None] + radii)
    bonded = (atoms.get_all_distances() < limits) & ~np.eye(len(atoms), dtype=bool)
    neighbors = [sorted(atoms.symbols[row]) for row in bonded]
    return [
        (i, j, bond_name(atoms.symbols[i], neighbors[i], atoms.symbols[j], neighbors[j]))
        for i, j in np.argwhere(bonded).tolist()
    ]


def test_the_first_unknown_bond_is_that_whose_name_is_unknown():
    """Whatever bonds were looked up before."""
    rng, found = np.random.default_rng(1), 0
    for name in rng.permutation(g2.names[:140]):
        atoms = molecule(name)
        atoms.positions += rng.normal(scale=0.1, size=(len(atoms), 3))
        bonds = names_of_bonds(atoms)
        expected = next((bond for bond in bonds if bond[2] not in TENSORNET_GFN2.bonds), None)
        batch = Batch.of(atoms.numbers, atoms.positions)
        reason = next(_plausibility.unknown_bonds(batch, TENSORNET_GFN2), "")
        assert bool(reason) == (expected is not None)
        if expected is not None:
            found += 1
            i, j, _ = expected
            assert f"atoms {i} and {j}, {atoms.symbols[i]} bonded to" in reason
    assert 20 < found < 130
