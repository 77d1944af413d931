"""Total charges of files and of ``info``: one rule for the calculator and all commands."""

from __future__ import annotations

import warnings
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

from mlff_triton import TensorNetCalculator, predict_files
from mlff_triton.calculators._total_charge import UnusedInfoWarning, total_charge
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart, read_structure
from mlff_triton.errors import InputError
from mlff_triton.statics import compute_all, read_frames
from tests.support.checkpoints import save_tiny_model
from tests.support.molecule_files import mol2, pdb, v2000, v3000

ACCEPTED = [-2, -2.0, np.int8(-2), [-2], (-2.0,), np.array([-2]), np.array([[-2]])]
ACCEPTED += [torch.tensor([-2])]
REFUSED = [None, True, "-2", b"-2", "-2 e", [-2, 0], [], 0.5, np.nan, 1j, {"total": -2}, [[-2, 0]]]
REFUSED += [np.array([True]), 10**30, [None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def calculator(model):
    return TensorNetCalculator(model, device="cpu", dtype="float64")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def dianion(calculator):
    atoms = molecule("CH3COOH")
    atoms.info["charge"] = -2
    return calculator.get_potential_energy(atoms)


@pytest.mark.parametrize("charge", ACCEPTED, ids=repr)
def test_one_element_is_a_charge(calculator, dianion, charge):
    atoms = molecule("CH3COOH")
    atoms.info["charge"] = charge
    assert total_charge(atoms.info) == -2
    assert calculator.get_potential_energy(atoms) == dianion
    assert not calculator.calculation_required(atoms, ["energy"])
    assert calculator.calculate_many([atoms])[0]["energy"] == dianion


@pytest.mark.parametrize("charge", REFUSED, ids=repr)
def test_anything_else_is_refused(calculator, charge):
    atoms = molecule("CH3COOH")
    calculator.get_potential_energy(atoms)
    atoms.info["charge"] = charge
    for call in (
        lambda: calculator.get_potential_energy(atoms),
        lambda: calculator.calculate_many([atoms]),
        lambda: calculator.dynamics([atoms]),
        lambda: list(compute_all([atoms], calculator)),
    ):
        with pytest.raises(InputError, match="the total charge must be an integer") as refusal:
            call()
        assert "\n" not in str(refusal.value)


FILES = {
    "a.sdf": v2000(molecule("CH3COOH"), charges={0: -1, 2: -1}),
    "b.sdf": v3000(molecule("CH3COOH"), charges={0: -1, 2: -1}),
    "c.sdf": v2000(molecule("CH3COOH"), codes={0: -1, 2: -1}),
    "a.mol2": mol2(molecule("CH3COOH"), charges=[-0.25] * 8),
    "a.pdb": pdb([molecule("CH3COOH")], {0: "1-", 2: "1-"}),
}


FORMAL, PARTIAL = [-1, 0, -1, 0, 0, 0, 0, 0], [-0.2, -0.3] * 4
CIF = """data_ions
_cell_length_a 20
_cell_length_b 20
_cell_length_c 20
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_symmetry_space_group_name_H-M "P 1"
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
_atom_site_charge
"""


def with_charges(charges):
    atoms = molecule("CH3COOH")
    atoms.set_initial_charges(charges)
    return atoms


def write_charges(name, charges):
    """Write acetic acid with charges of atoms, and no total charge."""
    atoms = with_charges(charges)
    if name.endswith(".cif"):
        sites = zip(atoms.symbols, atoms.positions / 20 + 0.5, charges, strict=True)
        rows = (f"{s}{k} {s} {x} {y} {z} {q}\n" for k, (s, (x, y, z), q) in enumerate(sites))
        Path(name).write_text(CIF + "".join(rows))
    elif name.endswith(".data"):
        atoms.set_cell([20] * 3)
        ase.io.write(name, atoms, format="lammps-data", atom_style="charge", masses=True)
    else:
        columns = ["symbols", "positions", "initial_charges"]
        options = {"format": "extxyz", "columns": columns} if name.endswith(".xyz") else {}
        ase.io.write(name, atoms, **options)


@pytest.mark.parametrize("charges", [FORMAL, PARTIAL], ids=["formal", "partial"])
@pytest.mark.parametrize("name", ["a.xyz", "a.traj", "a.cif", "a.json"])
def test_charges_of_atoms_add_up(calculator, model, name, charges):
    """Through the commands that read frames, those that read one structure, and ASE."""
    write_charges(name, charges)
    atoms = read_structure(name, periodic=False)
    assert atoms.info["charge"] == -2
    (frame,) = read_frames(name, periodic=False)
    assert frame.info["charge"] == -2
    options = {"model": model, "device": "cpu", "dtype": "float64", "periodic": False}
    assert predict_files(name, "out.xyz", **options).errors == 0
    found = ase.io.read("out.xyz")
    assert found.info["charge"] == -2
    assert found.get_potential_energy() == pytest.approx(energy(calculator, atoms, -2), abs=1e-6)


def test_initial_charges_count_in_ase(calculator, dianion):
    for charges in (FORMAL, PARTIAL):
        atoms = with_charges(charges)
        assert calculator.get_potential_energy(atoms) == dianion
        assert calculator.calculate_many([atoms])[0]["energy"] == dianion
        atoms.info["charge"] = 0
        neutral = calculator.get_potential_energy(atoms)
        assert neutral == energy(calculator, atoms, 0) != dianion
        del atoms.info["charge"]
        assert calculator.get_potential_energy(atoms) == dianion
        atoms.set_initial_charges([0.01] * 8)  # 0.08 in all
        assert calculator.get_potential_energy(atoms) == neutral


def test_initial_charges_survive_a_restart(calculator):
    settings = Settings(stages=[Stage("nve", 1)], timestep=0.5)
    simulation = Simulation.start(with_charges(PARTIAL), calculator, settings, "run")
    simulation.run()
    (atoms,) = load_restart("run/restart.npz").systems
    assert atoms.info["charge"] == -2


@pytest.mark.parametrize("name", ["a.xyz", "a.traj", "a.cif"])
def test_charges_of_atoms_that_are_no_total_are_refused(calculator, model, name):
    write_charges(name, [0.05] * 8)
    message = r"must be an integer, not '0\.400 \(the sum of the charges of its atoms\)'"
    with pytest.raises(InputError, match=message):
        calculator.get_potential_energy(with_charges([0.05] * 8))
    with pytest.raises(InputError, match=message):
        list(compute_all(read_frames(name, periodic=False), calculator))
    options = {"model": model, "device": "cpu", "periodic": False}
    progress = predict_files(name, "out.xyz", **options)
    assert (progress.errors, "0.400 (the sum of" in progress.first_error) == (1, True)
    assert predict_files(name, "zero.xyz", charge=0, **options).errors == 0


def test_charges_of_sites_count_for_all_their_atoms():
    group = CIF.replace('"P 1"', '"P -1"')
    Path("a.cif").write_text(group + "C1 C 0.1 0.1 0.1 -1\nO1 O 0.15 0.1 0.1 -0.5\n")
    atoms = read_structure("a.cif")
    assert (len(atoms), atoms.info["charge"]) == (4, -3)


def test_unknown_charges_of_a_block_do_not_count():
    write_charges("a.cif", [1] * 8)
    Path("a.cif").write_text(Path("a.cif").read_text().replace(" 1\n", " ?\n"))
    assert "charge" not in read_structure("a.cif").info


def energy(calculator, atoms, charge):
    bare = Atoms(atoms.numbers, atoms.positions)
    bare.info["charge"] = charge
    return calculator.get_potential_energy(bare)


def extended(name, charge):
    atoms = molecule("CH3COOH")
    atoms.info["charge"] = charge
    ase.io.write(name, atoms, format="extxyz")


@pytest.mark.parametrize("name", [*FILES, "a.xyz", "list.xyz", "a.traj"])
def test_charges_of_files_reach_the_model(calculator, model, name):
    if name in FILES:
        Path(name).write_text(FILES[name])
    elif name == "a.traj":
        atoms = molecule("CH3COOH")
        atoms.info["charge"] = np.array([-2])
        ase.io.write(name, atoms)
    else:
        extended(name, -2 if name == "a.xyz" else [-2])
    atoms = read_structure(name)
    charged, neutral = (energy(calculator, atoms, charge) for charge in (-2, 0))
    assert abs(charged - neutral) > 1e-4
    (computed,) = compute_all(read_frames(name), calculator)
    assert computed.get_potential_energy() == charged
    assert computed.info["charge"] == -2
    assert calculator.get_potential_energy(atoms) == charged
    options = {"model": model, "device": "cpu", "dtype": "float64"}
    assert predict_files(name, "out.xyz", **options).errors == 0
    found = ase.io.read("out.xyz")
    assert found.get_potential_energy() == pytest.approx(charged, abs=1e-7)
    assert found.info["charge"] == -2
    predict_files(name, "neutral.xyz", charge=0, **options)
    found = ase.io.read("neutral.xyz")
    assert found.info["charge"] == 0
    assert found.get_potential_energy() == pytest.approx(neutral, abs=1e-7)


def test_a_wrong_charge_costs_one_structure(model):
    images = [molecule("CH4") for _ in range(3)]
    images[1].info["charge"] = [1, 1]
    ase.io.write("in.xyz", images, format="extxyz")
    options = {"model": model, "device": "cpu"}
    assert predict_files("in.xyz", "out.xyz", **options).errors == 1
    found = ase.io.read("out.xyz", 1)
    assert "the total charge must be an integer, not array([1, 1])" in found.info["error"]
    assert predict_files("in.xyz", "neutral.xyz", charge=0, **options).errors == 0
    names = [f"in.xyz, frame {k}" for k in range(3)]
    calculator = TensorNetCalculator(model, device="cpu")
    with pytest.raises(InputError, match=r"in\.xyz, frame 1: the total charge"):
        list(compute_all(read_frames("in.xyz"), calculator, names))


def test_a_neutral_model_refuses_charges_of_files():
    Path("a.sdf").write_text(FILES["a.sdf"])
    with pytest.raises(InputError, match="neutral"):
        TensorNetCalculator(device="cpu").get_potential_energy(read_structure("a.sdf"))


UNUSED = [
    ({"total_charge": -2}, "total_charge=-2 .* its total charge is 0"),
    ({"Total_Charge": [-1]}, "Total_Charge"),
    ({"charge": -2, "total_charge": -1}, "total_charge=-1 .* is -2"),
    ({"Charge": -1}, "Charge=-1"),
    ({"spin": 2}, "spin=2 .* know no spin"),
    ({"multiplicity": 3}, "multiplicity=3"),
    ({"spin_multiplicity": "triplet"}, "triplet"),
]
USED = [
    {},
    {"total_charge": 0, "spin": 0, "multiplicity": 1},
    {"charge": -2, "total_charge": -2.0},
    {"spin": 1, "spin_multiplicity": np.array([1])},
    {"charges": [1, 2], "spinning": 7},
]


@pytest.mark.parametrize(("info", "message"), UNUSED)
def test_keys_of_others_are_warned_of_once(model, info, message):
    atoms = molecule("CH3COOH")
    atoms.info.update(info)
    ase.io.write("in.xyz", [atoms] * 2, format="extxyz")
    for images in ([atoms], read_frames("in.xyz"), [read_structure("in.xyz")]):
        calculator = TensorNetCalculator(model, device="cpu")
        with pytest.warns(UnusedInfoWarning, match=message) as caught:
            calculator.calculate_many([*images, *images])
        assert len(caught) == 1
        with pytest.warns(UnusedInfoWarning, match=message):
            TensorNetCalculator(model, device="cpu").get_potential_energy(images[0])
    with pytest.warns(UnusedInfoWarning, match=message) as caught:
        predict_files("in.xyz", "out.xyz", model=model, device="cpu")
    assert len(caught) == 1


@pytest.mark.parametrize("info", USED, ids=repr)
def test_keys_that_agree_are_not_warned_of(model, info):
    atoms = molecule("CH3COOH")
    atoms.info.update(info)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TensorNetCalculator(model, device="cpu").get_potential_energy(atoms)


@pytest.mark.parametrize(
    "charges", [np.zeros((8, 2)), [np.inf, -np.inf] * 4, [1e308] * 8, ["+"] * 8], ids=str
)
def test_charges_of_atoms_without_a_sum_are_refused(calculator, charges):
    atoms = with_charges([0.0] * 8)
    atoms.arrays["initial_charges"] = np.asarray(charges)
    with pytest.raises(InputError, match="the charges of its atoms, which have no sum"):
        calculator.get_potential_energy(atoms)
