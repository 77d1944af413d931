"""The option `dispersion` of calculators: results, warnings, copies, and simulations with it."""

from __future__ import annotations

import copy
import pickle
import warnings

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.units import Bohr

from mlff_triton import TensorNetCalculator, save_model
from mlff_triton.calculators import _session
from mlff_triton.checkpoints.dispersion import warn_of_dispersion
from mlff_triton.dispersion import correction
from mlff_triton.dispersion.correction import Dispersion
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.errors import DispersionWarning, InputError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.testing import assert_close, random_cluster, random_crystal, water_box
from tests.support.dispersion import batch_of, expected_of
from tests.support.tensornets import model_of
from tests.support.torch_sim_double import state_of

pytest.importorskip("dftd3", reason="s-dftd3 is an optional extra")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

METHOD = "d3bj:pbe"


def calculator(dispersion=METHOD, model=None, dtype="float64", **options):
    network = model_of() if model is None else model
    return TensorNetCalculator(network, device="cpu", dtype=dtype, dispersion=dispersion, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("atoms", [random_cluster(7), random_crystal(9, "triclinic")])
def test_all_results_have_it(atoms, dtype):
    atoms = atoms.copy()
    expected = expected_of(atoms, "pbe")
    atoms.calc = calculator(None, dtype=dtype)
    plain = dict(atoms.calc.results, forces=atoms.get_forces(), energy=atoms.get_potential_energy())
    of_atoms = atoms.get_potential_energies()
    stress = atoms.get_stress(voigt=False) if atoms.pbc.any() else None
    atoms.calc = calculator(dtype=dtype)
    assert_close(atoms.get_potential_energy(), plain["energy"] + expected.energy, 0)
    assert_close(atoms.get_forces(), plain["forces"] + expected.forces, 1)
    assert "energies" not in atoms.calc.results
    assert_close(atoms.get_potential_energies(), of_atoms + expected.atom_energies, 0)
    assert atoms.calc.results["free_energy"] == atoms.get_potential_energy()
    if stress is not None:
        found = atoms.get_stress(voigt=False)
        assert_close(found, stress + expected.virial / atoms.get_volume(), 1)
    (many,) = atoms.calc.calculate_many([atoms])
    assert_close(many["forces"], atoms.get_forces(), 1)
    assert set(many) == set(atoms.calc.results) - {"energies"}


def test_an_ensemble_gets_it_once():
    members = [model_of(), model_of()]
    atoms = random_cluster(7)
    plain = calculator(None, Ensemble(members)).get_potential_energy(atoms)
    found = calculator(METHOD, Ensemble(members)).get_potential_energy(atoms)
    assert_close(found - plain, expected_of(atoms, "pbe").energy, 0)


def test_positions_and_cells_that_change_change_it():
    atoms = random_crystal(9, "triclinic").copy()
    atoms.calc, plain = calculator(), calculator(None)
    for scale in (1.0, 1.02, 0.99):
        atoms.set_cell(atoms.cell * scale, scale_atoms=True)
        found = atoms.get_forces() - plain.get_forces(atoms)
        assert_close(found, expected_of(atoms, "pbe").forces, 1, floor=0.01)


def test_copies_pickles_and_makers_have_it():
    atoms = random_cluster(7)
    one = calculator("D3BJ:PBE")
    expected = one.get_potential_energy(atoms)
    assert one.parameters["dispersion"] == METHOD
    assert "dispersion" not in calculator(None).parameters
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), one.maker("cpu")()):
        assert other.session.dispersion.method == METHOD
        assert other.get_potential_energy(atoms) == expected


def test_a_wrong_name_is_refused_before_the_model_is_loaded():
    with pytest.raises(InputError, match="did you mean d3bj:pbe"):
        TensorNetCalculator("there is no such model", dispersion="d3bj:pbee")


def run(atoms, folder, one, steps=4, **options):
    settings = Settings((Stage("nvt", steps),), every=2, threads=1, **options)
    assert Simulation.start(atoms, one, settings, folder).run()
    return load_restart(folder / "restart.npz")


def test_simulations_move_by_the_sum(tmp_path):
    """Against ASE's sum of two calculators, of which neither is ours with dispersion."""
    from ase.calculators.mixing import SumCalculator

    reference = pytest.importorskip("dftd3.ase").DFTD3
    atoms = water_box(8)
    assert calculator().dynamics([atoms]) is None
    found = run(atoms, tmp_path / "ours", calculator())
    bare = run(atoms, tmp_path / "bare", calculator(None, backend="exact"))
    cutoffs = {"disp2": 40 * Bohr, "disp3": 40 * Bohr, "cn": 40 * Bohr, "width2": 5 * Bohr}
    other = reference(method="PBE", damping="d3bj", realspace_cutoff=cutoffs)
    expected = run(atoms, tmp_path / "sum", SumCalculator([calculator(None), other]))
    assert_close(found.state.positions, expected.state.positions, 0)
    assert np.abs(found.state.positions - bare.state.positions).max() > 1e-7
    frame = ase.io.read(tmp_path / "ours" / "trajectory.xyz", "-1")
    again = frame.copy()
    again.calc = calculator()
    assert_close(frame.get_potential_energy(), again.get_potential_energy(), 0, "float32")


def test_replicas_and_pressure_have_it(tmp_path):
    atoms = water_box(8)
    settings = Settings((Stage("npt", 20),), every=20, threads=1)
    one = Simulation.start([atoms, atoms], calculator(), settings, tmp_path / "two")
    other = Simulation.start(atoms, calculator(), settings, tmp_path / "one")
    assert one.run()
    assert other.run()
    two, single = (load_restart(tmp_path / name / "restart.npz").state for name in ("two", "one"))
    assert_close(two.positions[: len(atoms)], single.positions, 0)
    assert_close(two.cell[0], single.cell[0], 0)


def test_the_model_of_torch_sim_adds_it(home):
    systems = [random_crystal(9, "triclinic"), random_crystal(5, "cubic")]
    plain, model = (
        home.TorchSimModel(model_of(), device="cpu", dtype="float64", dispersion=method)
        for method in (None, METHOD)
    )
    for _ in range(2):
        state = state_of(home, model, *systems)
        bare, found = plain(state), model(state)
        expected = [expected_of(atoms, "pbe") for atoms in systems]
        assert_close(found["energy"] - bare["energy"], [one.energy for one in expected], 0)
        forces = np.concatenate([one.forces for one in expected])
        assert_close(found["forces"] - bare["forces"], forces, 1)
        stress = [e.virial / a.get_volume() for e, a in zip(expected, systems, strict=True)]
        assert_close(found["stress"] - bare["stress"], np.stack(stress), 1)
        for atoms in systems:
            atoms.rattle(0.02, seed=3)


class TestChoiceOfTheLibrary:
    def test_a_cpu_and_float64_take_the_reference(self):
        for device, dtype in (("cpu", torch.float32), ("cuda", torch.float64)):
            found = Dispersion(METHOD, torch.device(device), dtype)
            assert found.library == "dftd3"
            assert str(found) == (
                "adds dispersion d3bj:pbe, which dftd3 computes on the CPU in float64"
            )

    def test_amd_takes_the_reference(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", None)
        found = Dispersion(METHOD, torch.device("cuda"), torch.float32)
        assert found.library == "dftd3"

    def test_float32_on_nvidia_computes_there(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(correction, "_can_run_on_gpu", lambda: True)
        found = Dispersion(METHOD, torch.device("cuda", 1), torch.float32)
        assert str(found).endswith("which nvalchemi-toolkit-ops computes on cuda:1")

    def test_float32_on_nvidia_needs_its_library(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(correction, "_can_run_on_gpu", lambda: False)
        with pytest.raises(InputError, match=r"needs nvalchemi-toolkit-ops.*pip install"):
            Dispersion(METHOD, torch.device("cuda"), torch.float32)

    def test_elements_with_more_references_take_the_reference(self, monkeypatch):
        on_gpu = pytest.importorskip("mlff_triton.dispersion.on_gpu")
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        found = Dispersion(METHOD, torch.device("cuda"), torch.float32)
        calls = []
        monkeypatch.setattr(on_gpu, "compute", lambda *a, **_: calls.append(a))
        assert set(range(1, 95)) - on_gpu.elements() == {89, 91, 92, 93, 94}
        uranium = molecule("H2O")
        uranium.numbers[0] = 92
        energy = found.compute(batch_of(uranium)).energy
        assert energy[0] == pytest.approx(expected_of(uranium, "pbe").energy)
        assert not calls
        found.compute(batch_of(molecule("H2O")))
        assert len(calls) == 1

    def test_elements_beyond_its_data_are_refused(self):
        heavy = molecule("H2O")
        heavy.numbers[0] = 104
        with pytest.raises(InputError, match="no data of element 104"):
            Dispersion(METHOD, torch.device("cpu"), torch.float32).compute(batch_of(heavy))


class TestWarnings:
    @pytest.mark.parametrize(
        ("model", "method", "message"),
        [
            ("default", METHOD, "of default have dispersion (D3): leave d3bj:pbe out"),
            ("tensornet-gfn2", METHOD, "have dispersion (D4)"),
            ("aceff-2.0", "d3bj:wb97m", "have dispersion (VV10)"),
            ("tensornet-matpes-pbe", "d3bj:r2scan", "call for d3bj:pbe, not for d3bj:r2scan"),
            ("tensornet-matpes-r2scan", METHOD, "call for d3bj:r2scan, not for d3bj:pbe"),
        ],
    )
    def test_models_with_a_name(self, model, method, message):
        with pytest.warns(DispersionWarning) as found:
            warn_of_dispersion(model, method)
        assert [message in str(one.message) for one in found] == [True]

    @pytest.mark.parametrize(
        "model", ["tensornet-matpes-pbe", "tensornet-matpes-r2scan", model_of()]
    )
    def test_the_correction_that_fits(self, model):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_dispersion(model, "d3bj:r2scan" if "r2scan" in str(model) else METHOD)

    def test_addresses_are_those_of_names(self):
        from mlff_triton.checkpoints import hub, shipped_models

        known = hub.NAMED["aceff-2.0"]
        address = f"hf:{known.repo}@{known.revision}/{known.file}"
        for model in (address, *shipped_models().values(), *map(str, shipped_models().values())):
            with pytest.warns(DispersionWarning, match="have dispersion"):
                warn_of_dispersion(model, METHOD)

    @pytest.mark.parametrize(
        ("card", "word"),
        [
            ("Trained on wB97M-V.", "wB97M-V"),
            ("ωB97X-D3 and a basis", "ωB97X-D"),
            ("PBE-D3(BJ), plane waves", "D3(BJ"),
            ("PBE+D4", "D4"),
            ("rVV10 and r2SCAN+rVV10", None),
            ("labels of GFN2-xTB", "GFN2"),
            ("PBE without D3", None),
            ("no D3 correction", None),
            ("PBE, ID3F4 and sd3x", None),
            ("", None),
        ],
    )
    def test_cards_of_files(self, tmp_path, card, word):
        path = tmp_path / "model.safetensors"
        save_model(model_of(), path, card)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            warn_of_dispersion(path, METHOD)
        texts = [str(one.message) for one in found]
        assert len(texts) == (word is not None)
        assert all(f"names {word}" in text for text in texts)

    def test_cards_beside_files(self, tmp_path):
        path = tmp_path / "model.safetensors"
        save_model(model_of(), path)
        path.with_suffix(".md").write_text("B97M-V")
        with pytest.warns(DispersionWarning, match="names B97M-V"):
            calculator(model=path)

    def test_once(self):
        with pytest.warns(DispersionWarning) as found:
            _session.Session("default", "cpu", dispersion=METHOD)
        assert len(found) == 1
