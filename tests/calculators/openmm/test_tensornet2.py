"""Models with partial charges through OpenMM and openmm-ml."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms

from mlff_triton import TensorNetCalculator
from mlff_triton.errors import InputError
from mlff_triton.testing import assert_within, random_cluster, random_crystal
from tests.support.charged import charged_model

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
from tests.support.openmm_systems import (  # noqa: E402
    assert_as_ase,
    context_of,
    energy_and_forces,
    force_for,
    reduced,
    system_of,
)

CRYSTAL = reduced(random_crystal(60, "triclinic", seed=2))
CUTOFF = 3.0  # Å; the crystal is 6.5 Å high


def calculator(**changes: object) -> TensorNetCalculator:
    return TensorNetCalculator(charged_model(**changes), device="cpu", dtype="float64")


@pytest.mark.parametrize("charge", [-1, 0, 2])
def test_molecules_are_those_of_ase(charge):
    atoms = random_cluster(8)
    force = force_for(atoms, charged_model(), dtype="float64", charge=charge)
    atoms.info["charge"] = charge
    assert_as_ase(context_of(system_of(atoms, force), atoms), atoms, calculator())


def test_boxes_are_those_of_ase():
    model = charged_model(coulomb_cutoff=CUTOFF)
    context = context_of(system_of(CRYSTAL, force_for(CRYSTAL, model, dtype="float64")), CRYSTAL)
    assert_as_ase(context, CRYSTAL, calculator(coulomb_cutoff=CUTOFF))


def test_boxes_that_are_too_small_are_refused():
    with pytest.raises(InputError, match="cannot be periodic") as refusal:
        force_for(CRYSTAL, charged_model())
    assert "\n" not in str(refusal.value)
    force = force_for(CRYSTAL, charged_model(coulomb_cutoff=9.0))
    context = context_of(system_of(CRYSTAL, force), CRYSTAL)
    with pytest.raises(openmm.OpenMMException, match="less than twice the Coulomb cutoff of 9 Å"):
        context.getState(energy=True)


def test_ions_are_refused_by_models_for_neutral_systems():
    with pytest.raises(InputError, match="neutral systems"):
        force_for(random_cluster(4), charged_model(uses_charge=False), charge=1)


def test_forces_survive_files():
    atoms = random_cluster(6)
    system = system_of(atoms, force_for(atoms, charged_model(), dtype="float64"))
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    expected, found = (energy_and_forces(context_of(s, atoms)) for s in (system, again))
    assert found[0] == expected[0]


def test_openmm_ml_adds_models_with_charges():
    pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
    from openmm import app
    from openmmml import MLPotential

    atoms = Atoms("OHH", [[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]])
    topology = app.Topology()
    residue = topology.addResidue("HOH", topology.addChain())
    for symbol in atoms.symbols:
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
    potential = MLPotential("mlff-triton", modelPath=charged_model())
    system = potential.createSystem(topology, device="cpu", dtype="float64", charge=1)
    atoms.info["charge"] = 1
    context = context_of(system, atoms)
    assert_as_ase(context, atoms, calculator())
    energy, forces = energy_and_forces(context)
    assert np.isfinite(energy)
    assert_within(np.asarray(forces).sum(0), np.zeros(3), 1e-6, floor=1.0)
