"""Commands with a model that knows its uncertainty."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mlff_triton import load_model, save_model
from mlff_triton.model.known_domain import UnknownChemistryWarning
from tests.model.test_tensornet import evaluate
from tests.support.tensornets import model_of, uncertain

OPTIONS = ("--dtype", "float64", "--device", "cpu", "--model")


def save(path, limit):
    save_model(uncertain(model_of(), 5, limit), path)
    return path


@pytest.fixture
def known(tmp_path):
    """Path of a model without a limit, and the largest uncertainties of methane and water."""
    path = save(tmp_path / "known.safetensors", None)
    images = [molecule("CH4"), molecule("H2O")]
    ase.io.write(tmp_path / "two.xyz", images, format="extxyz")
    largest = [float(evaluate(load_model(path), atoms).uncertainty.max()) for atoms in images]
    return path, largest


def test_energy_shows_and_writes_it(run, known):
    path, largest = known
    code, out, err = run("energy", "two.xyz", *OPTIONS, path, "--out", "results.xyz")
    assert (code, err) == (0, "")
    for value in largest:
        assert f"{value:.4f}" in out
    read = ase.io.read("results.xyz", ":")
    assert [a.arrays["uncertainty"].max() for a in read] == pytest.approx(largest, abs=1e-7)
    out = run("energy", "two.xyz", "--device", "cpu", "--model", "tensornet-gfn2")[1]
    assert "expected" not in out


def test_predict_writes_it_and_says_what_is_above_the_limit(run, known, tmp_path):
    _, largest = known
    path = save(tmp_path / "limited.safetensors", sum(largest) / 2)
    first = "the model expects an error of"
    with pytest.warns(UnknownChemistryWarning, match=first) as seen:
        assert run("predict", "two.xyz", *OPTIONS, path, "--out", "results.xyz")[0] == 0
    assert len(seen) == 1
    read = ase.io.read("results.xyz", ":")
    above = [value > sum(largest) / 2 for value in largest]
    assert [a.info.get("unknown_chemistry", "").startswith(first) for a in read] == above
    for atoms, value in zip(read, largest, strict=True):
        assert atoms.arrays["uncertainty"].max() == pytest.approx(value, abs=1e-7)
    with pytest.warns(UnknownChemistryWarning, match=first) as seen:
        assert run("energy", "two.xyz", *OPTIONS, path, "--out", "energies.xyz")[0] == 0
    assert len(seen) == 1
    read = ase.io.read("energies.xyz", ":")
    assert [a.info.get("unknown_chemistry", "").startswith(first) for a in read] == above


def test_tables_have_a_column_of_it(run, known):
    h5py = pytest.importorskip("h5py", reason="h5py is an optional extra")
    path, largest = known
    ase.io.write("many.xyz", [molecule("CH4"), molecule("SiH4"), molecule("H2O")])
    assert run("predict", "many.xyz", *OPTIONS, path, "--out", "out.h5")[0] == 1
    with h5py.File("out.h5") as file:
        parts = np.split(file["uncertainty"][:], np.cumsum(file["n_atoms"][:])[:-1])
        assert "unknown_chemistry" not in file  # as the model has no limit
    assert parts[0].max() == pytest.approx(largest[0])
    assert np.isnan(parts[1]).all()
    assert parts[2].max() == pytest.approx(largest[1])


def test_md_stops_and_saves_the_structure(run, known):
    path, largest = known
    ase.io.write("methane.xyz", molecule("CH4"), format="extxyz")
    options = ("methane.xyz", *OPTIONS, path, "--steps", 6, "--every", 2)
    code, out, err = run("md", *options, "--stop-at-uncertainty", largest[0] / 2)
    assert code == 2
    assert "stopped in step 0: the model expects an error of" in err
    assert "atom" in err
    assert "Traceback" not in out + err
    saved = ase.io.read("md/uncertain.xyz")
    assert saved.arrays["uncertainty"].max() == pytest.approx(largest[0], rel=1e-5)
    code, _, err = run("md", "--restart", "md/restart.npz", "--stop-at-uncertainty", 1000)
    assert (code, err) == (0, "")
    assert "largest_uncertainty_eV_per_A" in Path("md/log.csv").read_text()


@pytest.mark.parametrize("value", [0.3, 0, "nan"])
def test_md_refuses_what_cannot_stop_before_it_writes(run, value, known):
    path, _ = known
    model = ("--model", path if value != 0.3 else "tensornet-gfn2")
    code, _, err = run("md", "two.xyz", *model, "--device", "cpu", "--stop-at-uncertainty", value)
    assert code == 2
    assert err.count("\n") == 1
    assert ("does not know its uncertainty" if value == 0.3 else "must be above 0 eV/Å") in err
    ase.io.write("water.xyz", molecule("H2O"), format="extxyz")
    code, _, err = run("md", "water.xyz", *model, "--device", "cpu", "--stop-at-uncertainty", value)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["relax", "vibrations", "md"])
def test_other_commands_warn_once_of_an_atom_above_the_limit(run, known, tmp_path, command):
    path = save(tmp_path / "limited.safetensors", known[1][0] / 2)
    ase.io.write("methane.xyz", molecule("CH4"), format="extxyz")
    few = {"relax": ("--steps", 3), "vibrations": (), "md": ("--steps", 4)}[command]
    with pytest.warns(UnknownChemistryWarning, match="the model expects an error of") as seen:
        run(command, "methane.xyz", *OPTIONS, path, *few)
    assert len([w for w in seen if w.category is UnknownChemistryWarning]) == 1
