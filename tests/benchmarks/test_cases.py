from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.engine import cases
from benchmarks.engine.cases import CASES
from benchmarks.systems import geometries, models, systems
from mlff_triton.units import NM


@pytest.mark.parametrize(
    ("name", "n_atoms"),
    [(n, v[1]) for n, v in (geometries.MD17 | geometries.DRUGS).items()]
    + [*geometries.MD22.items()],
)
def test_molecules_are_complete_and_do_not_overlap(name, n_atoms):
    atoms = geometries.load()[name]
    assert len(atoms) == n_atoms
    distances = atoms.get_all_distances()[np.triu_indices(n_atoms, 1)]
    assert distances.min() > geometries.MIN_DISTANCE
    reach = np.sort(atoms.get_all_distances(), axis=1)[:, 1]
    assert reach.max() < 2.0, "an atom has no bond"


def test_there_are_nine_and_seven_molecules_and_a_drug():
    assert len(geometries.MD17) == 9
    assert len(geometries.MD22) == 7
    assert len(geometries.load()) == 17


def test_geometries_are_those_of_the_script():
    pytest.importorskip("rdkit", reason="RDKit is not installed")
    ethanol = geometries.from_smiles(geometries.MD17["ethanol"][0])
    committed = geometries.load()["ethanol"]
    assert (ethanol.numbers == committed.numbers).all()


def test_cases_are_named_once():
    names = [(case.bench, case.name) for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("bench", ["step", "shipped", "ase"])
def test_large_cases_are_checked_on_small_ones(bench):
    for case in (case for case in CASES if case.bench == bench):
        checked = case.checked
        assert int(checked.name) <= cases.TRUTH_ATOMS
        assert (checked is case) == (int(case.name) <= cases.TRUTH_ATOMS)
        assert checked.model == case.model


def test_charges_on_a_mesh_are_those_of_the_reaction_field():
    meshes = [case for case in CASES if case.model == "charged-pme"]
    fields = {case.name: case for case in CASES if case.bench == "charged"}
    assert [case.name for case in meshes] == ["pme-4096", "pme-65536"]
    assert [case.checked.name for case in meshes] == ["pme-4096"] * 2
    for case in meshes:
        assert case.build.args == fields[case.name.removeprefix("pme-")].build.args
    field, mesh = models.charged_model(8), models.MODELS["charged-pme"](8)
    assert (field.config.coulomb_method, mesh.config.coulomb_method) == ("reaction-field", "pme")
    assert (mesh.config.pme_error, mesh.cutoff) == (1e-5, field.cutoff)
    weights = field.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in mesh.state_dict().items())


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name in ("21", "128", "192", "Si-64", "256x21", "ethanol")],
    ids=lambda case: f"{case.bench}-{case.name}",
)
def test_edges_are_counted_without_a_graph(case):
    system = case.build()
    if case.name.isdigit():
        assert system.n_atoms == int(case.name)
    assert system.count_edges(5.0) == system.graph(5.0).n_edges
    for unit in (1.0, NM):
        assert (system.positions / unit == (system.positions / unit).astype(np.float32)).all()


def test_edges_of_a_box_smaller_than_the_cutoff_are_counted():
    system = systems.crystal("Si", "diamond", 5.43, 1)
    assert system.count_edges(5.0) == system.graph(5.0).n_edges
