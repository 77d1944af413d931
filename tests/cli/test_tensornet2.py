"""The command line with a model of partial charges."""

from __future__ import annotations

import re
from functools import partial

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule

from mlff_triton import load_model, save_model
from mlff_triton._common import cache
from mlff_triton.engine import calibration, costs
from mlff_triton.model.mesh_coulomb import ChargedCellWarning
from mlff_triton.testing import water_box
from tests.model.test_tensornet import evaluate
from tests.support.charged import charged_model

CPU = torch.device("cpu")


@pytest.fixture
def charged(tmp_path):
    """Path of a model whose Coulomb energy has no cutoff."""
    path = tmp_path / "charged.safetensors"
    save_model(charged_model(hidden_channels=8), path, "A random TensorNet2.")
    ase.io.write(tmp_path / "water.xyz", water_box(8, seed=0), format="extxyz")
    return path


def test_info_describes_charges(run, charged):
    code, out, err = run("info", charged)
    assert (code, err) == (0, "")
    for expected in (
        "TorchMD-NET TensorNet2",
        "3 per atom and layer",
        "all pairs, not for periodic boxes",
        "A random TensorNet2.",
        "H -1.0000, C -5.0000, N -7.0000",
    ):
        assert expected in out
    assert "least weight" not in out
    short = charged_model(coulomb_cutoff=2.5, repulsion=True, softness_floor=0.01)
    short.references = torch.zeros_like(short.references)
    save_model(short, "short.safetensors")
    out = run("info", "short.safetensors")[1]
    assert re.search(r"references +│ none", out)
    assert "within 2.5 Å, with a reaction field" in out
    assert "within bonds" in out
    assert "3 per atom and layer, least weight 0.01" in out


def test_energy_writes_charges_and_dipoles(run, charged):
    options = ("--model", charged, "--dtype", "float64", "--device", "cpu", "--charge", 1)
    code, _, err = run("energy", "ethanol.xyz", *options, "--out", "results.xyz")
    assert (code, err) == (0, "")
    read = ase.io.read("results.xyz")
    expected = evaluate(load_model(charged).double(), molecule("CH3CH2OH"), charge=[1.0])
    np.testing.assert_allclose(read.get_charges(), expected.charges, atol=1e-6)
    assert read.get_potential_energy() == pytest.approx(expected.energy.item())
    assert read.get_dipole_moment().shape == (3,)


def test_periodic_boxes_need_a_converted_model(run, charged):
    for command in ("energy", "md"):
        code, _, err = run(command, "water.xyz", "--model", charged, "--device", "cpu")
        assert code == 2
        assert "mlff-triton convert --coulomb-cutoff 12" in err
        assert err.count("\n") == 1
    assert run("energy", "water.xyz", "--no-pbc", "--model", charged, "--device", "cpu")[0] == 0
    code, out, err = run("convert", charged, "field.safetensors", "--coulomb-cutoff", 3)
    assert (code, out, err) == (0, "wrote field.safetensors\n", "")
    assert load_model("field.safetensors").config.coulomb_cutoff == 3.0
    shown = run("energy", "water.xyz", "--model", "field.safetensors", "--device", "cpu")
    assert (shown[0], shown[2]) == (0, "")
    code, _, err = run("convert", charged, "far.safetensors", "--coulomb-cutoff", 9)
    code, _, err = run("energy", "water.xyz", "--model", "far.safetensors", "--device", "cpu")
    assert code == 2
    assert "less than twice the Coulomb cutoff of 9 Å" in err
    code, _, err = run("convert", "default", "default.safetensors", "--coulomb-cutoff", 9)
    assert code == 2
    assert "the model has no Coulomb energy" in err


def test_predict_goes_on_after_boxes_without_a_cutoff(run, charged):
    options = ("--model", charged, "--device", "cpu", "--out", "results.xyz")
    _, out, err = run("predict", "ethanol.xyz", "water.xyz", *options)
    assert "cannot be periodic" in out + err
    read = ase.io.read("results.xyz", ":")
    assert [len(atoms) for atoms in read if "error" not in atoms.info] == [9]
    assert read[0].get_charges().sum() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("suffix", ["h5", "parquet"])
def test_tables_have_the_charges_and_dipoles_of_extended_xyz(run, charged, suffix):
    library, read = {
        "h5": ("h5py", lambda file: {name: data[:].tolist() for name, data in file.items()}),
        "parquet": ("pyarrow.parquet", lambda table: table.to_pydict()),
    }[suffix]
    module = pytest.importorskip(library, reason=f"{library} is an optional extra")
    ase.io.write("many.xyz", [molecule("H2O"), molecule("SiH4"), molecule("CH4")])
    options = ("--model", charged, "--dtype", "float64", "--device", "cpu", "--charge", 1)
    for out in ("out.xyz", f"out.{suffix}"):
        assert run("predict", "many.xyz", *options, "--out", out)[0] == 1
    if suffix == "h5":
        with module.File("out.h5") as file:
            table = read(file)
        table["charges"] = np.split(table["charges"], np.cumsum(table["n_atoms"])[:-1])
    else:
        table = read(module.read_table("out.parquet"))
    for k, atoms in enumerate(ase.io.read("out.xyz", ":")):
        found = {name: np.asarray(table[name][k]) for name in ("charges", "dipole")}
        if k == 1:  # an unknown element
            assert np.isnan(found["charges"]).all()
            assert np.isnan(found["dipole"]).all()
            continue
        np.testing.assert_allclose(found["charges"], atoms.get_charges(), atol=6e-9)
        np.testing.assert_allclose(found["dipole"], atoms.get_dipole_moment(), atol=1e-12)
        assert found["charges"].sum() == pytest.approx(1)


def test_md_simulates_ions_and_boxes(run, charged):
    options = ("--steps", 4, "--every", 2, "--device", "cpu", "--timestep", 0.1)
    code, out, err = run("md", "ethanol.xyz", "--model", charged, "--charge", 1, *options)
    assert (code, err) == (0, "")
    assert len(ase.io.read("md/trajectory.xyz", ":")) == 3
    assert run("convert", charged, "field.safetensors", "--coulomb-cutoff", 3)[0] == 0
    code, out, err = run(
        "md", "water.xyz", "--model", "field.safetensors", *options, "--out", "box"
    )
    assert (code, err) == (0, ""), out


PME = ("--coulomb", "pme", "--device", "cpu")


def test_energies_of_boxes_by_particle_mesh_ewald(run, charged):
    """The same by an option, of the energies of one file or of many, and by a converted model."""
    given = ("--dtype", "float64", "--out")
    single = ("energy", "water.xyz", "--model", charged)
    assert run(*single, *PME, *given, "single.xyz")[::2] == (0, "")
    assert run("predict", "water.xyz", "--model", charged, *PME, *given, "many.xyz")[0] == 0
    assert run("convert", charged, "pme.safetensors", "--coulomb", "pme")[::2] == (0, "")
    other = ("energy", "water.xyz", "--model", "pme.safetensors", "--device", "cpu")
    assert run(*other, *given, "other.xyz")[::2] == (0, "")
    names = ("single.xyz", "many.xyz", "other.xyz")
    found = [ase.io.read(name).get_potential_energy() for name in names]
    model = load_model(charged, coulomb="pme").double()
    expected = evaluate(model, ase.io.read("water.xyz")).energy.item()
    assert found == pytest.approx([expected] * 3, rel=1e-9)


def test_charged_boxes_are_announced(run, charged):
    given = ("energy", "water.xyz", "--model", charged, *PME, "--charge", 1)
    with pytest.warns(ChargedCellWarning, match=r"the cell has the charge \+1 e: its energy"):
        assert run(*given)[0] == 0


@pytest.mark.parametrize(
    ("command", "model", "coulomb", "message"),
    [
        ("energy ethanol.xyz", "", "pme", "needs a periodic cell: set the cell and pbc=True"),
        ("energy water.xyz", "default", "pme", "the model has no Coulomb energy: leave coulomb"),
        ("md water.xyz", "", "ewald", "coulomb='ewald' is unknown: use one of all-pairs"),
        ("relax water.xyz", "", "reaction-field", "needs a cutoff: load the model with"),
        ("vibrations ethanol.xyz", "", "pme", "needs a periodic cell"),
        ("explain", "default", "pme", "the model has no Coulomb energy"),
    ],
)
def test_energies_that_are_not_defined(run, charged, command, model, coulomb, message):
    name, *structures = command.split()
    given = [model or charged] if name == "explain" else ["--model", model or charged]
    code, _, err = run(name, *structures, *given, "--coulomb", coulomb, "--device", "cpu")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_md_by_particle_mesh_ewald_goes_on(run, charged):
    options = ("--steps", 4, "--every", 2, "--timestep", 0.1, "--ensemble", "npt")
    assert run("md", "water.xyz", "--model", charged, *PME, *options)[::2] == (0, "")
    restart = ("md", "--restart", "md/restart.npz")
    assert run(*restart, "--extend", 2)[::2] == (0, "")
    assert run(*restart, "--extend", 2, "--coulomb", "pme")[::2] == (0, "")
    code, _, err = run(*restart, "--extend", 2, "--coulomb", "all-pairs")
    assert code == 2
    assert "--coulomb contradicts the restart file, which says pme" in err
    assert run("md", "ethanol.xyz", "--model", charged, "--steps", 2, "--out", "vacuum")[0] == 0
    code, _, err = run("md", "--restart", "vacuum/restart.npz", "--coulomb", "pme")
    assert code == 2
    assert "which says that of the model" in err


def test_info_and_explain_name_particle_mesh_ewald(run, charged):
    code, out, err = run("info", charged, "--coulomb", "pme")
    assert (code, err) == (0, "")
    assert "particle-mesh Ewald, error 0.0001, pairs to 9.0 Å" in out
    code, out, err = run("explain", charged, *PME)
    assert (code, err) == (0, "")
    assert "with coulomb=pme in float32 on cpu" in out
    assert "TensorNet2 with particle-mesh Ewald, F = 8" in out


def test_explain_names_the_backends(run, charged):
    code, out, err = run("explain", charged, "--device", "cpu")
    assert (code, err) == (0, "")
    assert "cpu           taken" in out
    assert "exact         slower" in out
    assert "torch         slower" in out
    assert "triton-graph  no: Triton kernels need a GPU" in out
    assert "no times: TensorNet2, F = 8, layers = 1" in out


def test_calibrate_measures_pairs(run, charged, monkeypatch):
    quick = partial(calibration.measure_backend, sizes=(4, 16), time=lambda *_: 2.0)
    monkeypatch.setattr(calibration, "measure_backend", quick)
    monkeypatch.setenv(cache.FOLDER, "cache")
    code, out, err = run("calibrate", "--model", charged, "--device", "cpu")
    assert (code, err) == (0, "")
    assert re.search(r"16 +│ +240 +│ +2 +│ +2", out), out
    (kept,) = costs.read(costs.cache_file())
    assert kept.target.architecture == "TensorNet2"
    out = run("explain", charged, "--device", "cpu")[1]
    assert "cpu           taken, 2 ms" in out
    cut = load_model(charged, coulomb_cutoff=6.0)
    assert costs.known(costs.Target.of(cut.config, CPU, torch.float32)) is None


def test_calibrate_measures_what_explain_asks_for(run, charged, monkeypatch):
    quick = partial(calibration.measure_backend, sizes=(4, 16), time=lambda *_: 2.0)
    monkeypatch.setattr(calibration, "measure_backend", quick)
    monkeypatch.setenv(cache.FOLDER, "cache")
    options = (charged, "--device", "cpu", "--coulomb", "pme")
    assert "no times: TensorNet2 with particle-mesh Ewald" in run("explain", *options)[1]
    assert run("calibrate", "--model", *options)[::2] == (0, "")
    assert "cpu           taken, 2 ms" in run("explain", *options)[1]
    assert "no times" in run("explain", charged, "--device", "cpu")[1]
