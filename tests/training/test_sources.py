"""Labeled structures from files of all kinds, in one form; bad ones are refused in one line."""

from __future__ import annotations

import re
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db import connect

from mlff_triton.errors import InputError
from mlff_triton.training.frames import Frames
from mlff_triton.training.labels import Labels, parse_keys
from mlff_triton.training.sources import read_frames
from mlff_triton.units import BOHR, HARTREE
from tests.support.labeled import labeled

IMAGES = labeled(6)
CELLS = labeled(4, periodic=True)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_xyz(images, name="data.xyz"):
    ase.io.write(name, images, format="extxyz")
    return name


def arrays_of(images):
    return {
        "n_atoms": np.array([len(atoms) for atoms in images]),
        "numbers": np.concatenate([atoms.numbers for atoms in images]),
        "positions": np.concatenate([atoms.positions for atoms in images]),
        "forces": np.concatenate([atoms.get_forces() for atoms in images]),
        "energy": np.array([atoms.get_potential_energy() for atoms in images]),
    }


def check(frames, images, tolerance=1e-7):
    assert len(frames) == len(images)
    for k, atoms in enumerate(images):
        atoms_of = slice(frames.start[k], frames.start[k + 1])
        assert (frames.numbers[atoms_of] == atoms.numbers).all()
        assert np.allclose(frames.positions[atoms_of], atoms.positions, atol=tolerance)
        assert np.allclose(frames.forces[atoms_of], atoms.get_forces(), atol=tolerance)
        assert np.isclose(frames.energy[k], atoms.get_potential_energy(), atol=tolerance)
        assert np.allclose(frames.cell[k], atoms.cell.array, atol=tolerance)
        assert (frames.pbc[k] == atoms.pbc).all()
        if atoms.pbc.all():
            assert np.allclose(frames.stress[k], atoms.get_stress(voigt=False), atol=tolerance)
        else:
            assert np.isnan(frames.stress[k]).all()


@pytest.mark.parametrize("images", [IMAGES, CELLS], ids=["clusters", "cells"])
@pytest.mark.parametrize("name", ["data.xyz", "data.extxyz", "data.db", "data.traj"])
def test_files_of_ase(images, name):
    if name.endswith(".db"):
        with connect(name) as database:
            for atoms in images:
                database.write(atoms)
    else:
        ase.io.write(name, images)
    frames = read_frames([name], Labels())
    check(frames, images)
    assert frames.name[1] == f"{name}, frame 1"


def test_arrays_of_structures_of_different_sizes():
    np.savez("data.npz", **arrays_of(IMAGES))
    check(read_frames(["data.npz"], Labels()), IMAGES)


def test_arrays_of_structures_of_the_same_size():
    np.savez(
        "data.npz",
        z=CELLS[0].numbers,
        R=np.array([atoms.positions for atoms in CELLS]),
        F=np.array([atoms.get_forces() for atoms in CELLS]),
        E=np.array([[atoms.get_potential_energy()] for atoms in CELLS]),
        cell=np.array([atoms.cell.array for atoms in CELLS]),
        stress=np.array([atoms.get_stress() for atoms in CELLS]),
    )
    check(read_frames(["data.npz"], Labels()), CELLS)


SAME = {
    "numbers": np.array([atoms.numbers for atoms in CELLS]),
    "positions": np.array([atoms.positions for atoms in CELLS]),
    "forces": np.array([atoms.get_forces() for atoms in CELLS]),
    "energy": np.array([atoms.get_potential_energy() for atoms in CELLS]),
    "cell": np.array([atoms.cell.array for atoms in CELLS]),
    "stress": np.array([atoms.get_stress() for atoms in CELLS]),
}
THREE = {name: array[:3] for name, array in SAME.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"forces": THREE["forces"].reshape(12, 3)},
        {"forces": THREE["forces"].reshape(3, 12)},
        {"forces": THREE["forces"].ravel(), "numbers": THREE["numbers"][:, :, None]},
        {"numbers": THREE["numbers"].ravel(), "n_atoms": np.full(3, 4)},
        {"positions": THREE["positions"].reshape(12, 3), "n_atoms": np.full(3, 4)},
    ],
)
def test_layouts_of_arrays(change):
    np.savez("data.npz", **THREE | change)
    check(read_frames(["data.npz"], Labels()), CELLS[:3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forces": THREE["forces"].transpose(0, 2, 1)}, r"forces have shape \[3, 3, 4\]"),
        ({"forces": THREE["forces"].transpose(1, 0, 2)}, r"forces have shape \[4, 3, 3\]"),
        ({"numbers": THREE["numbers"].T}, r"numbers have shape \[4, 3\].* expected \[C, N\]"),
        ({"n_atoms": np.array([4, 4, 3])}, "4 atoms in each structure, and n_atoms has other"),
        ({"cell": np.full(3, 9.0)}, r"cell has shape \[3\], expected \[3, 3\]"),
        ({"positions": THREE["positions"][:0]}, "it has no structures, or no atoms"),
    ],
)
def test_arrays_of_other_layouts_are_refused(change, message):
    np.savez("data.npz", **THREE | change)
    with pytest.raises(InputError, match=message) as error:
        read_frames(["data.npz"], Labels())
    assert "\n" not in str(error.value)


def test_groups_of_hdf5():
    h5py = pytest.importorskip("h5py")
    with h5py.File("data.h5", "w") as file:
        for k, atoms in enumerate(IMAGES):
            group = file.create_group(f"cluster{k}")
            group["atomic_numbers"] = atoms.numbers
            group["coordinates"] = atoms.positions[None] / BOHR
            group["gradient"] = -atoms.get_forces()[None] * BOHR / HARTREE
            group["energies"] = [atoms.get_potential_energy() / HARTREE]
    labels = Labels(parse_keys(["forces=-gradient"]), energy_unit="Hartree", length_unit="Bohr")
    frames = read_frames(["data.h5"], labels)
    check(frames, IMAGES)
    assert frames.group[0] == "cluster0"


def test_the_tables_of_predict_are_read():
    h5py = pytest.importorskip("h5py")
    with h5py.File("data.h5", "w") as file:
        for name, array in arrays_of(IMAGES).items():
            file[name] = array
        file["cell"] = np.zeros((len(IMAGES), 3, 3))
        file["pbc"] = np.zeros((len(IMAGES), 3), dtype=bool)
        file["stress"] = np.full((len(IMAGES), 6), np.nan)
    check(read_frames(["data.h5"], Labels()), IMAGES)


def test_other_names_groups_and_charges():
    images = labeled(3)
    for atoms in images:
        atoms.info = {"REF_energy": atoms.get_potential_energy(), "config_type": "small"}
        atoms.info |= {"total_charge": -1, "split": "test"}
        atoms.arrays["REF_forces"] = atoms.get_forces()
    kept = [atoms.copy() for atoms in images]
    write_xyz(kept)
    frames = read_frames(["data.xyz"], Labels())
    check(frames, images)
    assert set(frames.group) == {"small"}
    assert set(frames.split) == {"test"}
    assert (frames.charge == -1).all()
    write_xyz(images)
    with pytest.raises(InputError, match="choose with --key energy=REF_energy"):
        read_frames(["data.xyz"], Labels())
    check(read_frames(["data.xyz"], Labels(parse_keys(["energy=energy", "forces=forces"]))), images)


def test_units_of_forces_may_differ():
    labels = Labels(energy_unit="kcal/mol", force_unit="Hartree/Bohr", stress_unit="kbar")
    assert labels.forces == HARTREE / BOHR
    for options in (
        {"energy_unit": "Ry"},
        {"length_unit": "pm"},
        {"force_unit": "eV"},
        {"dipole_unit": "D"},
    ):
        with pytest.raises(InputError, match="is unknown: use one of"):
            Labels(**options)
    for key in ("energy", "energy="):
        with pytest.raises(InputError, match="does not name a label: write energy=REF_energy"):
            parse_keys([key])
    with pytest.raises(InputError, match="--key gives energy two names, a and b: keep one"):
        parse_keys(["energy=a", "energy=b"])
    with pytest.raises(InputError, match="the label 'spin' is unknown"):
        Labels(parse_keys(["spin=mu"]))


def spoiled(kind):
    """Return structures of which number 2 is bad."""
    images = labeled(8)
    results = dict(images[2].calc.results)
    if kind == "no forces":
        del results["forces"]
    elif kind == "no energy":
        del results["energy"]
    elif kind == "nan":
        results["forces"] = np.full_like(results["forces"], np.nan)
    elif kind == "energy":
        results["energy"] += 5000
    elif kind == "units":
        results["energy"] /= HARTREE
    elif kind == "huge":
        results["forces"] = results["forces"] + 1e4
    else:
        images[2].info["charge"] = 0.5
    images[2].calc = SinglePointCalculator(images[2], **results)
    return images


BAD = {
    "no forces": "it has no forces: add them, or name them with --key forces=NAME",
    "no energy": "it has no energy",
    "nan": "there is NaN or infinity in its forces",
    "energy": "differs by [0-9]+",
    "units": "as if units were mixed: Hartree and eV",
    "huge": "check units",
    "charge": "its charge is 0.5, which is not an integer",
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("as_arrays", [False, True])
def test_bad_structures_are_named_or_left_out(kind, as_arrays):
    images = spoiled(kind)
    if as_arrays and kind in ("nan", "energy", "units", "huge"):
        np.savez("data.npz", **arrays_of(images))
        name = "data.npz"
    else:
        name = write_xyz(images)
    with pytest.raises(InputError, match=f"{name}, frame 2: .*{BAD[kind]}") as error:
        read_frames([name], Labels())
    assert str(error.value).endswith(". --skip-bad leaves them out")
    said = []
    frames = read_frames([name], Labels(), skip_bad=True, say=said.append)
    check(frames, [atoms for k, atoms in enumerate(images) if k != 2])
    assert len(said) == 1
    assert said[0].startswith(f"leaves out 1 of 8 structures, the first: {name}, frame 2: ")


def test_files_that_cannot_be_read():
    Path("text.xyz").write_text("2\n\nCu 0 0 0\n")
    Path("empty.xyz").write_text("")
    Path("damaged.npz").write_bytes(b"PK")
    np.savez("no-energy.npz", **{k: v for k, v in arrays_of(IMAGES).items() if k != "energy"})
    np.savez("short.npz", **(arrays_of(IMAGES) | {"energy": np.zeros(2)}))
    np.savez("flat.npz", **(arrays_of(IMAGES) | {"n_atoms": np.ones(2)}))
    np.savez("no-numbers.npz", positions=np.zeros((2, 3)))
    for name, reason in {
        "absent.xyz": "there is no file 'absent.xyz'",
        "text.xyz": "text.xyz",
        "empty.xyz": "empty.xyz contains no structures",
        "damaged.npz": "damaged.npz cannot be read",
        "no-energy.npz": "frame 0: it has no energy",
        "short.npz": r"energy has shape \[2\], for 6 structures",
        "flat.npz": "positions have shape",
        "no-numbers.npz": "it has no array of numbers: name it with --key numbers=NAME",
    }.items():
        with pytest.raises(InputError, match=reason) as error:
            read_frames([name], Labels())
        assert "\n" not in str(error.value)


def test_structures_are_joined_and_selected():
    write_xyz(IMAGES)
    write_xyz(CELLS, "cells.xyz")
    parts = [read_frames([name], Labels()) for name in ("data.xyz", "cells.xyz")]
    joined = Frames.join(parts)
    both = read_frames(["data.xyz", "cells.xyz"], Labels())
    assert joined.fingerprint == both.fingerprint != parts[0].fingerprint
    chosen = np.array([7, 0, 3])
    check(joined.select(chosen), [(IMAGES + CELLS)[k] for k in chosen])


OPTIONAL = ("stress", "charge", "group", "split", "weight", "charges", "dipole")


@pytest.mark.parametrize("label", OPTIONAL)
@pytest.mark.parametrize("as_arrays", [False, True])
def test_names_that_no_structure_has_are_refused(label, as_arrays):
    name = "data.npz" if as_arrays else write_xyz(IMAGES)
    if as_arrays:
        np.savez("data.npz", **arrays_of(IMAGES))
    labels = Labels({label: "-typo"}, with_charges=True)
    with pytest.raises(InputError, match=f"--key {label}=-typo names what no structure of {name}"):
        read_frames([name], labels)
    check(read_frames([name], labels, may_lack=[label]), IMAGES)


def test_one_structure_with_a_named_label_is_enough():
    images = labeled(3)
    images[1].info["total"] = 1
    write_xyz(images)
    frames = read_frames(["data.xyz"], Labels({"charge": "total"}))
    assert frames.charge.tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", ["net_charge", "REF_charge", "Charge", "total charge"])
@pytest.mark.parametrize("kind", ["xyz", "npz", "h5"])
def test_total_charges_of_other_names_are_not_taken_for_none(name, kind):
    images = labeled(3)
    file = f"data.{kind}"
    arrays = arrays_of(images) | {name: np.array([0, -1, 0])}
    for atoms, charge in zip(images, arrays[name], strict=True):
        atoms.info[name] = charge
    if kind == "xyz":
        write_xyz(images)
    elif kind == "npz":
        np.savez(file, **arrays)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(file, "w") as opened:
            for label, array in arrays.items():
                opened[label] = array
    shown = f"'{name}'" if " " in name else name
    reason = f"{name}=-1 is not read: if it is the total charge, add --key charge={shown};"
    with pytest.raises(InputError, match=re.escape(reason)):
        read_frames([file], Labels())
    assert read_frames([file], Labels({"charge": name})).charge.tolist() == [0, -1, 0]


def test_initial_charges_are_the_total_charge_as_in_calculators():
    images = labeled(3)
    given = [0.0, -1.0, 0.3]
    for atoms, charge in zip(images, given, strict=True):
        atoms.set_initial_charges([charge] + [0.0] * (len(atoms) - 1))
    write_xyz(images[:2])
    assert read_frames(["data.xyz"], Labels()).charge.tolist() == [0, -1]
    images[1].info["charge"] = images[2].info["charge"] = 1
    write_xyz(images)
    assert read_frames(["data.xyz"], Labels()).charge.tolist() == [0, 1, 1]
    del images[2].info["charge"]
    write_xyz(images)
    reason = r"frame 2: its total charge would be 0.300 \(the sum .*\): give it, and name it with"
    with pytest.raises(InputError, match=reason):
        read_frames(["data.xyz"], Labels())


@pytest.mark.parametrize(
    ("name", "value", "is_told"),
    [("multiplicity", 3, True), ("Spin", 2, True), ("spin", 1, False), ("mult", 1, False)],
)
def test_other_states_than_singlets_are_told(name, value, is_told):
    """A model that learns from singlets and triplets learns a mean of both."""
    images = labeled(3)
    images[1].info[name] = value
    ase.io.write("data.xyz", images, format="extxyz")
    said = []
    read_frames(["data.xyz"], Labels(), say=said.append)
    first = f"1, the first by {name} of data.xyz, frame 1; a model knows no spin"
    assert [first in line for line in said] == [True] * is_told


def test_named_positions_are_those_of_the_name():
    images = labeled(3)
    for atoms in images:
        atoms.arrays["relaxed"] = atoms.positions + 1.0
    write_xyz(images)
    frames = read_frames(["data.xyz"], Labels({"positions": "relaxed"}))
    expected = np.concatenate([atoms.positions + 1.0 for atoms in images])
    assert np.allclose(frames.positions, expected, atol=1e-7)


def test_no_advice_to_leave_out_everything():
    images = labeled(3)
    for atoms in images:
        atoms.calc = None
    write_xyz(images)
    with pytest.raises(InputError, match=r"3 of 3 structures are bad$"):
        read_frames(["data.xyz"], Labels())


def test_files_without_any_good_structure():
    images = labeled(3)
    for atoms in images:
        atoms.calc = None
    write_xyz(images)
    with pytest.raises(InputError, match=r"all 3 structures are bad, the first: data\.xyz, frame"):
        read_frames(["data.xyz"], Labels(), skip_bad=True)
