"""Uncertainties in ASE, TorchSim, files of results and warnings."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.constraints import FixAtoms

from mlff_triton import Ensemble, TensorNetCalculator, load_model
from mlff_triton.calculators._plausibility import unknown_atoms
from mlff_triton.errors import InputError
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.statics import compute_all
from mlff_triton.statics.result_text import extended_xyz
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.support.tensornets import Batch, model_of, uncertain
from tests.support.torch_sim_double import state_of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")


def model(limit: float | None = None, **changes: object) -> TensorNet:
    return uncertain(model_of(**changes), 5, limit)


def calculator(limit: float | None = None) -> TensorNetCalculator:
    return TensorNetCalculator(model(limit), device="cpu", dtype="float64")


def expected_of(*structures: Atoms) -> np.ndarray:
    batch = Batch(structures, [0] * len(structures))
    return batch.predict(model()).uncertainty.numpy()


@pytest.mark.parametrize("atoms", [random_cluster(7), random_crystal(9, "triclinic"), Atoms("C")])
def test_ase_gets_it_as_a_property(atoms):
    atoms = atoms.copy()
    atoms.calc = calculator()
    assert "uncertainty" in atoms.calc.implemented_properties
    found = atoms.calc.get_property("uncertainty", atoms)
    assert found.dtype == np.float64
    assert_close(found, expected_of(atoms), 0)
    assert_close(atoms.calc.results["uncertainty"], found, 0)
    atoms.positions *= 1.01
    atoms.get_forces()
    assert_close(atoms.calc.results["uncertainty"], expected_of(atoms), 0)
    for again in (copy.deepcopy(atoms.calc), pickle.loads(pickle.dumps(atoms.calc))):
        assert_close(again.get_property("uncertainty", atoms), expected_of(atoms), 0)


def test_many_structures_get_theirs():
    images = [random_cluster(6), Atoms("O"), random_cluster(4, seed=3)]
    results = calculator().calculate_many(images)
    for atoms, result in zip(images, results, strict=True):
        assert_close(result["uncertainty"], expected_of(atoms), 0)


@pytest.mark.parametrize("members", [[model_of()], [model(), model_of(num_layers=1)]])
def test_other_models_say_so(members):
    atoms = molecule("H2O")
    atoms.calc = TensorNetCalculator(Ensemble(members), device="cpu")
    assert "uncertainty" not in atoms.calc.implemented_properties
    with pytest.raises(InputError, match="does not know its uncertainty: take one that") as refusal:
        atoms.calc.get_property("uncertainty", atoms)
    assert "\n" not in str(refusal.value)
    atoms.get_potential_energy()
    assert "uncertainty" not in atoms.calc.results


def test_files_of_results_hold_it():
    fixed = random_cluster(3, seed=4)
    fixed.set_constraint(FixAtoms([0]))
    tagged = random_cluster(4)
    tagged.set_tags([1, 2, 3, 4])
    done = list(compute_all([random_cluster(5), fixed, tagged], calculator()))
    read = ase.io.read(io.StringIO(extended_xyz(done).decode()), ":", format="extxyz")
    for atoms, original in zip(read, done, strict=True):
        found = original.calc.results["uncertainty"]
        assert_close(found, expected_of(original), 0)
        np.testing.assert_allclose(atoms.arrays["uncertainty"], found, atol=1e-7)
        np.testing.assert_allclose(atoms.get_forces(), original.get_forces(), atol=1e-7)


def test_one_warning_names_the_atom_above_the_limit():
    atoms = random_cluster(7)
    known = expected_of(atoms)
    worst = int(known.argmax())
    atoms.calc = calculator(float(known.max()) * 0.999)
    with pytest.warns(
        UnknownChemistryWarning, match=rf"on atom {worst} \(\w+\), more than"
    ) as seen:
        atoms.get_potential_energy()
    assert len(seen) == 1
    atoms.positions += 0.01
    atoms.get_potential_energy()  # warns no more, or this test would fail

    quiet = random_cluster(7)
    quiet.calc = calculator(float(known.max()) * 1.001)
    quiet.get_potential_energy()
    quiet.positions *= 0.9
    quiet.calc = calculator(0.5 * float(np.sort(expected_of(quiet))[0]))
    with pytest.warns(UnknownChemistryWarning, match="and of 7 atoms more than"):
        quiet.calc.calculate_many([quiet])


def test_the_message_is_one_line_about_the_worst_atom():
    line = unknown_atoms(np.array([1, 8, 6]), np.array([0.1, 0.5, 0.3]), 0.2)
    assert line.startswith("the model expects an error of 0.5 eV/Å in the force on atom 1 (O), and")
    assert "of 2 atoms more than the 0.2 eV/Å that are usual" in line
    assert "\n" not in line
    assert not unknown_atoms(np.array([1]), np.array([0.2]), 0.2)


def test_it_replaces_the_list_of_bonds():
    """Total charges and odd numbers of electrons are judged as before."""
    shipped = load_model("tensornet-gfn2")
    listed = shipped.known_domain.bonds
    assert listed
    for limit in (None, 1e6):
        known = uncertain(copy.deepcopy(shipped), 5, limit)
        assert known.known_domain.bonds == (listed if limit is None else None)
        assert known.known_domain.closed_shells
    strange = molecule("SO2")
    strange.calc = TensorNetCalculator(shipped, device="cpu")
    with pytest.warns(UnknownChemistryWarning, match="has no bond like that of atoms"):
        strange.get_potential_energy()
    known = uncertain(copy.deepcopy(shipped), 5, 1e6)
    strange.calc = TensorNetCalculator(known, device="cpu")
    strange.get_potential_energy()  # without a warning
    strange.calc = TensorNetCalculator(uncertain(copy.deepcopy(shipped), 5, 1e-9), device="cpu")
    with pytest.warns(UnknownChemistryWarning, match="the model expects an error of"):
        strange.get_potential_energy()
    radical = molecule("CH3")
    radical.calc = TensorNetCalculator(known, device="cpu")
    with pytest.warns(UnknownChemistryWarning, match="an odd number"):
        radical.get_potential_energy()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_sim_gets_it(home):
    images = [random_cluster(5), random_cluster(4, seed=3)]
    known = home.TorchSimModel(model(), device="cpu", dtype="float64")
    state = state_of(home, known, *images)
    found = known(state)
    assert_close(found["uncertainty"], expected_of(*images), 0)
    assert "uncertainty" not in home.TorchSimModel(model_of(), device="cpu")(state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_torch_sim_warns_once_of_atoms_above_the_limit(home, limit):
    images = [random_cluster(5), random_cluster(4, seed=3)]
    known = home.TorchSimModel(model(limit), device="cpu", dtype="float64")
    state = state_of(home, known, *images)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnknownChemistryWarning)
        for _ in range(2):
            known(state)
    found = [str(w.message) for w in caught if w.category is UnknownChemistryWarning]
    assert len(found) == (limit < 1)
    uncertainty = expected_of(*images)
    worst = uncertainty.argmax() if uncertainty.argmax() < 5 else uncertainty.argmax() - 5
    assert all(f"in the force on atom {worst} (" in text for text in found)
