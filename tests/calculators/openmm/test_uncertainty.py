"""Uncertainties of the atoms of a System."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from ase.build import molecule

from mlff_triton import TensorNetCalculator
from mlff_triton.calculators import create_openmm_force, create_openmm_uncertainty
from mlff_triton.calculators.openmm.recipe import Recipe, lasting_model
from mlff_triton.calculators.openmm.torch_force import OpenMMSystem
from mlff_triton.errors import InputError
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.testing import assert_close
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM
from tests.support.tensornets import model_of, uncertain

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

MODEL = uncertain(model_of(num_layers=1), 5, None)
OPTIONS = {"device": "cpu", "dtype": "float64"}


def context_of(force, positions):
    system = openmm.System()
    for _ in range(len(positions)):
        system.addParticle(12.0)
    system.addForce(force)
    context = openmm.Context(system, openmm.VerletIntegrator(0.0005))
    context.setPositions(positions)
    return context


def expected_of(atoms) -> np.ndarray:
    calculator = TensorNetCalculator(MODEL, device="cpu", dtype="float64")
    return calculator.get_property("uncertainty", atoms) * (EV_TO_KJ_PER_MOL * NM)


def test_it_follows_the_state():
    atoms = molecule("CH3OH")
    context = context_of(create_openmm_force(atoms.numbers, MODEL, **OPTIONS), atoms.positions / 10)
    uncertainty = create_openmm_uncertainty(atoms.numbers, MODEL, **OPTIONS)
    for _ in range(3):
        context.getIntegrator().step(3)
        state = context.getState(positions=True)
        atoms.positions = 10 * state.getPositions(asNumpy=True)._value
        assert_close(uncertainty(state), expected_of(atoms), 1)


def test_a_periodic_system_is_computed_in_its_box():
    atoms = molecule("CH3OH", cell=[4.5, 4.5, 4.5], pbc=True)
    force = create_openmm_force(atoms.numbers, MODEL, periodic=True, **OPTIONS)
    context = context_of(force, atoms.positions / 10)
    context.setPeriodicBoxVectors(*(atoms.cell.array / 10))
    found = create_openmm_uncertainty(atoms.numbers, MODEL, periodic=True, **OPTIONS)(
        context.getState(positions=True)
    )
    assert_close(found, expected_of(atoms), 1)
    atoms.pbc = False
    assert np.abs(found - expected_of(atoms)).max() > 1e-3


def test_a_part_of_a_system_has_those_of_its_atoms():
    atoms = molecule("CH3OH")
    numbers = np.concatenate([[1, 1], atoms.numbers])
    options = OPTIONS | {"particles": range(2, 8)}
    positions = np.concatenate([[[5, 5, 5], [6, 5, 5]], atoms.positions / 10])
    context = context_of(create_openmm_force(numbers, MODEL, **options), positions)
    uncertainty = create_openmm_uncertainty(numbers, MODEL, **options)
    assert_close(uncertainty(context.getState(positions=True)), expected_of(atoms), 1)


def test_what_has_none_says_so_in_one_line():
    water = molecule("H2O")
    with pytest.raises(InputError, match="does not know its uncertainty") as refusal:
        create_openmm_uncertainty(water.numbers, model_of(num_layers=1), **OPTIONS)
    assert "\n" not in str(refusal.value)
    context = context_of(create_openmm_force(water.numbers, MODEL, **OPTIONS), water.positions / 10)
    uncertainty = create_openmm_uncertainty(water.numbers, MODEL, **OPTIONS)
    with pytest.raises(InputError, match="the state has no positions"):
        uncertainty(context.getState(energy=True))


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_the_force_warns_of_atoms_above_the_limit(limit):
    atoms = molecule("CH3OH")
    model = uncertain(model_of(num_layers=1), 5, limit)
    force = create_openmm_force(atoms.numbers, model, route="python", **OPTIONS)
    context = context_of(force, atoms.positions / 10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnknownChemistryWarning)
        for _ in range(2):
            context.getState(energy=True)
            context.getIntegrator().step(1)
    found = [str(w.message) for w in caught if w.category is UnknownChemistryWarning]
    assert len(found) == (limit < 1)
    assert all("the model expects an error of" in text for text in found)


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_modules_of_torch_forces_warn_in_the_first_step(limit):
    atoms = molecule("CH3OH")
    model = lasting_model(uncertain(model_of(num_layers=1), 5, limit))
    recipe = Recipe(model=model, numbers=atoms.numbers, **OPTIONS)
    system = OpenMMSystem(recipe)
    positions = torch.tensor(atoms.positions / 10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnknownChemistryWarning)
        energies = [system.step(positions, None)[0] for _ in range(2)]
    assert energies[0] == energies[1]
    found = [str(w.message) for w in caught if w.category is UnknownChemistryWarning]
    assert len(found) == (limit < 1)
