"""Particle-mesh Ewald through ASE and OpenMM; `lammps.test_charged` has LAMMPS."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from ase import units
from ase.md.verlet import VelocityVerlet

from mlff_triton import TensorNetCalculator, load_model, save_model
from mlff_triton.calculators import ase_calculator
from mlff_triton.errors import InputError
from mlff_triton.model.mesh_coulomb import ChargedCellWarning
from mlff_triton.model.tensornet2 import with_coulomb
from mlff_triton.testing import check_calculator, random_cluster, random_crystal
from tests.support.charged import charged_model, crystal
from tests.support.tensornets import model_of

MODEL = with_coulomb(charged_model(), "pme", coulomb_cutoff=5.0)


def calculator(**options) -> TensorNetCalculator:
    return TensorNetCalculator(MODEL, device="cpu", dtype="float64", **options)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Path of a model of all pairs."""
    file = tmp_path_factory.mktemp("models") / "charged.safetensors"
    save_model(charged_model(), file)
    return file


APPROXIMATE = (  # to the error of the mesh, and of pairs that cross the cutoff
    "energy_is_extensive",
    "forces_match_energy",
    "forces_sum_to_zero",
    "permutation_permutes_results",
    "rotation_turns_results",
    "stress_matches_energy",
    "translation_changes_nothing",
)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_calculators_conform(dtype):
    """Derivatives and symmetries are those of the module: see `tests.model.test_mesh_coulomb`."""
    outcomes = check_calculator(
        lambda: TensorNetCalculator(MODEL, device="cpu", dtype=dtype),
        crystal().copy(),
        skip=[*APPROXIMATE, "stress_needs_a_cell"],
    )
    assert list(outcomes.values()).count("passed") > 10


def test_the_energy_of_a_file_is_chosen(path):
    atoms = crystal().copy()
    chosen = TensorNetCalculator(path, device="cpu", dtype="float64", coulomb="pme")
    expected = TensorNetCalculator(load_model(path, coulomb="pme"), device="cpu", dtype="float64")
    for each in (chosen, pickle.loads(pickle.dumps(chosen)), chosen.maker("cpu")()):
        assert each.get_potential_energy(atoms) == expected.get_potential_energy(atoms)
    assert chosen.parameters["coulomb"] == "pme"
    assert "coulomb" not in expected.parameters
    again = TensorNetCalculator(MODEL, device="cpu", dtype="float64", coulomb="reaction-field")
    with pytest.raises(InputError, match="less than twice the Coulomb cutoff of 5 Å"):
        again.get_potential_energy(atoms)
    with pytest.raises(InputError, match="coulomb='ewald' is unknown"):
        calculator(coulomb="ewald")
    with pytest.raises(InputError, match="no Coulomb energy: leave coulomb out"):
        TensorNetCalculator(model_of(), device="cpu", coulomb="pme")


def test_files_keep_the_energy(path, tmp_path):
    copy = tmp_path / "pme.safetensors"
    save_model(load_model(path, coulomb="pme", pme_error=1e-5), copy)
    config = load_model(copy).config
    assert (config.coulomb_method, config.coulomb_cutoff, config.pme_error) == ("pme", 9.0, 1e-5)
    assert load_model(copy, coulomb="all-pairs").config == load_model(path).config


def test_batches_have_cells_of_similar_size(monkeypatch):
    """Meshes have one size in a batch, and results those of single computations to their error."""
    sizes = [(8, "cubic"), (9, "cubic"), (200, "cubic"), (8, "small"), (3, "slab")]
    images = [random_crystal(n, kind, seed=n) for n, kind in sizes]
    calc = calculator()
    groups = [len(group) for group in calc._chunks(images[:4], 8192)]
    assert sum(groups) == 4
    assert groups[0] == 2
    assert len(groups) > 2
    found = calc.calculate_many(images)
    for atoms, result in zip(images, found, strict=True):
        expected = calculator().calculate_many([atoms])[0]
        assert result["energy"] == pytest.approx(expected["energy"], rel=1e-5)
        scale = np.linalg.norm(expected["forces"])
        assert np.linalg.norm(result["forces"] - expected["forces"]) < 3e-4 * scale
    assert [len(group) for group in calc._chunks(images[3:] + images[4:], 8192)] == [1, 1, 1]
    monkeypatch.setattr(ase_calculator, "MOST_MESH_POINTS", 1)
    assert [len(group) for group in calc._chunks(images[:4], 8192)] == [1] * 4


def test_the_choice_of_batches_looks_at_each_system_once():
    calc, images = calculator(), [random_crystal(2, "cubic", seed=k) for k in range(30)]
    looked, mesh_points = [], calc.session.engine.mesh_points
    calc.session.engine.mesh_points = lambda given: (
        looked.append(np.size(given)) or mesh_points(given)
    )
    assert [len(group) for group in calc._chunks(images, 40)] == [20, 10]
    assert 30 <= len(looked) <= 60
    assert max(looked) <= 9


def test_charged_cells_are_announced():
    atoms = crystal().copy()
    atoms.info["charge"] = 1
    with pytest.warns(ChargedCellWarning, match=r"charge \+1 e: its energy includes a uniform"):
        calculator().get_potential_energy(atoms)


def test_molecules_in_vacuum_are_refused():
    with pytest.raises(InputError, match="coulomb='all-pairs' for a molecule in vacuum"):
        calculator().get_potential_energy(random_cluster(4))


def test_energy_is_conserved():
    """Forces are the exact derivatives of the energy on the mesh."""
    atoms = crystal().copy()
    atoms.calc = calculator()
    width = np.sqrt(atoms.get_masses() * units.kB * 300)[:, None]
    atoms.set_momenta(np.random.default_rng(0).normal(size=(24, 3)) * width)
    dynamics = VelocityVerlet(atoms, 0.25 * units.fs)
    dynamics.run(1)
    totals = []
    for _ in range(20):
        dynamics.run(2)
        totals.append(atoms.get_total_energy())
    kinetic = atoms.get_kinetic_energy()
    assert np.ptp(totals) < 0.01 * kinetic


def test_openmm_computes_periodic_systems_only():
    openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
    from tests.support.openmm_systems import (
        assert_as_ase,
        context_of,
        force_for,
        reduced,
        system_of,
    )

    atoms = reduced(crystal().copy())
    force = force_for(atoms, MODEL, dtype="float64")
    assert_as_ase(context_of(system_of(atoms, force), atoms), atoms, calculator())
    molecule = random_cluster(4)
    with pytest.raises(InputError, match="needs a periodic cell") as refusal:
        force_for(molecule, MODEL)
    assert "\n" not in str(refusal.value)
    assert openmm is not None
