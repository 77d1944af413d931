"""Partial charges and dipoles through ASE and TorchSim, and through the files of results."""

from __future__ import annotations

import io
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import PropertyNotImplementedError

from mlff_triton import Ensemble, TensorNetCalculator
from mlff_triton.errors import InputError
from mlff_triton.statics.result_text import extended_xyz
from mlff_triton.statics.single_points import compute_all
from mlff_triton.testing import (
    assert_close,
    check_calculator,
    random_cluster,
    random_crystal,
    random_rotation,
)
from tests.model.test_tensornet import evaluate
from tests.support.charged import charged_model
from tests.support.tensornets import model_of
from tests.support.torch_sim_double import state_of

CRYSTAL = random_crystal(40, "triclinic", seed=2)  # 5.7 Å high


def calculator(dtype: str = "float64", **changes: Any) -> TensorNetCalculator:
    return TensorNetCalculator(charged_model(**changes), device="cpu", dtype=dtype)


SLOW_IN_FLOAT32 = pytest.mark.slow  # charges of crystals take the same steps in float32


@pytest.mark.parametrize(
    ("structure", "dtype"),
    [
        ("vacuum", "float64"),
        pytest.param("vacuum", "float32", marks=SLOW_IN_FLOAT32),
        ("vacuum with a cutoff", "float64"),
        pytest.param("vacuum with a cutoff", "float32", marks=SLOW_IN_FLOAT32),
        ("triclinic", "float64"),
        ("triclinic", "float32"),
    ],
)
def test_models_with_charges_conform(structure, dtype, request):
    if structure != "vacuum":
        request.getfixturevalue("shared_tables")
    atoms = CRYSTAL if structure == "triclinic" else random_cluster(5, seed=1)
    changes = {} if structure == "vacuum" else {"coulomb_cutoff": 2.5}
    model = charged_model(**changes)  # not by the factory, since it draws random weights
    outcomes = check_calculator(
        lambda: TensorNetCalculator(model, device="cpu", dtype=dtype),
        atoms,
        dtype=dtype,
        skip=["energy_is_extensive"],  # far copies share their charges
    )
    periodic = {"stress_matches_energy", "images_are_the_same"}
    skipped = {name for name, outcome in outcomes.items() if outcome != "passed"}
    skipped -= {"energy_is_extensive", "cutoff_is_smooth"}
    assert skipped == (set() if structure == "triclinic" else periodic)


def test_charges_and_dipole_are_those_of_the_model(rng):
    atoms = random_cluster(7)
    atoms.info["charge"] = 1
    atoms.calc = calculator()
    expected = evaluate(charged_model(), atoms, charge=[1.0]).charges.numpy()
    assert_close(atoms.get_charges(), expected, 0)
    arms = atoms.positions - atoms.get_center_of_mass()
    assert_close(atoms.get_dipole_moment(), expected @ arms, 0, floor=1.0)
    moved = atoms.copy()
    moved.calc = calculator()
    turn = random_rotation(rng)
    moved.positions = moved.positions @ turn + 7.0
    assert_close(moved.get_dipole_moment(), atoms.get_dipole_moment() @ turn, 0, floor=1.0)
    assert np.abs(atoms.get_dipole_moment()).max() > 0.01


def test_boxes_have_charges_but_no_dipole():
    atoms = CRYSTAL.copy()
    atoms.calc = calculator(coulomb_cutoff=2.8)
    assert atoms.get_charges().shape == (40,)
    assert atoms.get_stress().shape == (6,)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_dipole_moment()


def test_other_models_have_neither():
    atoms = molecule("H2O")
    atoms.calc = TensorNetCalculator(device="cpu")
    assert "charges" not in atoms.calc.implemented_properties
    for get in (atoms.get_charges, atoms.get_dipole_moment):
        with pytest.raises(PropertyNotImplementedError):
            get()
    assert calculator().implemented_properties[-2:] == ["charges", "dipole"]


def test_many_structures_have_charges():
    images = [random_cluster(6), Atoms("O"), random_cluster(4, seed=3)]
    for charge, atoms in enumerate(images):
        atoms.info["charge"] = charge
    results = calculator().calculate_many(images)
    for atoms, result in zip(images, results, strict=True):
        alone = calculator()
        assert_close(result["charges"], alone.get_property("charges", atoms), 0, floor=1.0)
        assert_close(result["dipole"], alone.get_property("dipole", atoms), 0, floor=1.0)
        assert_close(result["charges"].sum(), float(atoms.info["charge"]), 0, "float32", floor=1.0)


def test_ensembles_have_the_mean_charges():
    atoms, members = random_cluster(5), [charged_model(seed=k) for k in range(2)]
    found = TensorNetCalculator(Ensemble(members), device="cpu", dtype="float64")
    expected = np.mean([evaluate(m, atoms).charges.numpy() for m in members], axis=0)
    assert_close(found.get_property("charges", atoms), expected, 0)


def test_files_of_results_hold_charges_and_dipoles():
    images = [random_cluster(5), random_cluster(3, seed=4)]
    done = list(compute_all(images, calculator()))
    read = ase.io.read(io.StringIO(extended_xyz(done).decode()), ":", format="extxyz")
    for atoms, original in zip(read, done, strict=True):
        np.testing.assert_allclose(atoms.get_charges(), original.get_charges(), atol=1e-7)
        np.testing.assert_allclose(
            atoms.get_dipole_moment(), original.get_dipole_moment(), atol=1e-7
        )


def test_periodic_atoms_are_refused_without_a_cutoff():
    with pytest.raises(InputError, match="cannot be periodic"):
        calculator().get_potential_energy(CRYSTAL)
    with pytest.raises(InputError, match="less than twice the Coulomb cutoff of 3 Å"):
        calculator(coulomb_cutoff=3.0).get_potential_energy(CRYSTAL)
    ion = molecule("OH")
    ion.info["charge"] = -1
    with pytest.raises(InputError, match="neutral systems"):
        calculator(uses_charge=False).get_potential_energy(ion)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_sim_has_charges(home):
    images = [random_cluster(5), random_cluster(4, seed=3)]
    known = home.TorchSimModel(charged_model(), device="cpu", dtype="float64")
    state = state_of(home, known, *images)
    found = known(state)
    assert_close(found["charges"], evaluate(charged_model(), *images).charges, 0)
    local = home.TorchSimModel(model_of(), device="cpu")
    assert "charges" not in local(state)
