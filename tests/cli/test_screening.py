"""Commands look at structures before the first step, and name those that they doubt."""

from __future__ import annotations

import warnings
from pathlib import Path

import ase.io
import pytest
from ase import Atoms
from ase.build import bulk, molecule

from mlff_triton import predict_files
from mlff_triton.jobs.job import WARNINGS
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.statics import inputs
from mlff_triton.units import BOHR

OXYGEN = Atoms("O2", [[0, 0, 0], [0, 0, 1.21]])
SHIPPED = "tensornet-gfn2"  # which knows its bonds
ONE_STRUCTURE = {
    "relax": ["--steps", "1"],
    "md": ["--steps", "2", "--trajectory", "xyz"],
    "vibrations": [],
}


@pytest.fixture
def command(run):
    """Run a command; return its exit code, stdout, and stderr with the warnings of a process."""

    def function(name, *arguments):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            code, out, err = run(name, *arguments, "--device", "cpu", "--model", SHIPPED)
        return code, out, "".join(f"warning: {found.message}\n" for found in caught) + err

    return function


@pytest.mark.parametrize("name", [*ONE_STRUCTURE, "energy"])
def test_other_units_are_one_error(command, name):
    atoms = molecule("CH3CH2OH")
    atoms.positions /= BOHR
    ase.io.write("bohr.xyz", atoms)
    code, _, err = command(name, "bohr.xyz", *ONE_STRUCTURE.get(name, []))
    assert (code, err.count("\n")) == (2, 1), err
    assert "bohr.xyz" in err
    assert "in Bohr: multiply positions and cell by 0.5292" in err


@pytest.mark.parametrize("name", [*ONE_STRUCTURE, "energy"])
def test_a_lonely_atom_is_one_line(command, name):
    ase.io.write("far.xyz", molecule("CH3OH") + Atoms("O", [[0, 12, 0]]))
    _, _, err = command(name, "far.xyz", *ONE_STRUCTURE.get(name, []))
    assert err.count("atom 6 (O) has no neighbor within") == 1
    assert "warning: far.xyz" in err


@pytest.mark.parametrize("name", [*ONE_STRUCTURE, "energy"])
def test_unknown_chemistry_is_named(command, name):
    ase.io.write("oxygen.xyz", OXYGEN)
    _, _, err = command(name, "oxygen.xyz", *ONE_STRUCTURE.get(name, []))
    assert err.count("no bond like that of atoms 0 and 1") == 1
    assert "warning: oxygen.xyz" in err


@pytest.mark.parametrize("name", [*ONE_STRUCTURE, "energy"])
def test_a_missing_element_is_one_error(command, name):
    """Without a warning of its bonds, or the advice to add hydrogen."""
    ase.io.write("steel.xyz", bulk("Fe", cubic=True) * 2)
    code, _, err = command(name, "steel.xyz", *ONE_STRUCTURE.get(name, []))
    assert (code, err.count("\n")) == (2, 1), err
    assert "does not know" in err
    assert "PDBFixer" not in err


def test_energy_counts_unknown_chemistry(command):
    ase.io.write("mixed.xyz", [molecule("H2O"), OXYGEN, molecule("CH4"), molecule("CH3")])
    code, _, err = command("energy", "ethanol.xyz", "mixed.xyz", "--out", "results.xyz")
    assert code == 0
    assert "mixed.xyz, frame 1: the training set" in err
    assert "mixed.xyz, frame 3: the structure has 9 electrons" in err
    assert "2 of 5 structures outside the training set" in err
    found = ase.io.read("results.xyz", ":")
    assert ["unknown_chemistry" in atoms.info for atoms in found] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_predict_counts_unknown_chemistry(command, monkeypatch):
    monkeypatch.setattr(inputs, "STRUCTURES", 2)
    images = [molecule("H2O"), OXYGEN, molecule("CH4"), molecule("CH3"), bulk("Fe")]
    ase.io.write("mixed.xyz", images, format="extxyz")
    code, _, err = command("predict", "ethanol.xyz", "mixed.xyz", "--out", "results.xyz")
    assert code == 1  # for iron
    assert "mixed.xyz, frame 1: the training set" in err
    assert "mixed.xyz, frame 3: the structure has 9 electrons" in err
    assert "2 of 6 structures outside the training set" in err
    assert "PDBFixer" not in next(line for line in err.splitlines() if "frame 4" in line)
    found = ase.io.read("results.xyz", ":")
    reasons = [atoms.info.get("unknown_chemistry") for atoms in found]
    assert [reason is not None for reason in reasons] == [False, False, True, False, True, False]
    again = command("predict", "results.xyz", "--out", "again.xyz")
    assert "2 of 6" in again[2]


@pytest.mark.parametrize("suffix", ["h5", "parquet"])
def test_tables_have_a_column(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    ase.io.write("mixed.xyz", [molecule("H2O"), OXYGEN], format="extxyz")
    with pytest.warns(UnknownChemistryWarning, match=r"mixed\.xyz, frame 1: "):
        progress = predict_files("mixed.xyz", f"out.{suffix}", model=SHIPPED, device="cpu")
    assert progress.unknown == 1
    if suffix == "h5":
        h5py = pytest.importorskip("h5py", reason="h5py is an optional extra")
        with h5py.File("out.h5") as file:
            column = file["unknown_chemistry"].asstr()[:].tolist()
    else:
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an optional extra")
        column = parquet.read_table("out.parquet")["unknown_chemistry"].to_pylist()
    assert column[0] == ""
    assert "no bond like that" in column[1]


def test_a_continued_job_counts_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inputs, "STRUCTURES", 2)
    ase.io.write("mixed.xyz", [OXYGEN] * 5, format="extxyz")
    with pytest.warns(UnknownChemistryWarning):
        predict_files("mixed.xyz", "out.xyz", model=SHIPPED, device="cpu", stop=lambda: True)
    with pytest.warns(UnknownChemistryWarning):
        assert predict_files("mixed.xyz", "out.xyz", model=SHIPPED, device="cpu").unknown == 5


def test_only_some_of_many_are_named(command):
    ase.io.write("many.xyz", [OXYGEN] * 30, format="extxyz")
    for arguments in (["energy"], ["predict", "--out", "out.xyz"]):
        _, _, err = command(arguments[0], "many.xyz", *arguments[1:])
        assert err.count("no bond like that") == WARNINGS
        assert "30 of 30 structures outside" in err


def test_predict_refuses_structures_one_by_one(command):
    bohr, near = molecule("CH3OH"), Atoms("CO", [[0, 0, 0], [0, 0, 0.6]])
    bohr.positions /= BOHR
    ase.io.write("in.xyz", [molecule("H2O"), bohr, near, Atoms()], format="extxyz")
    assert command("predict", "in.xyz", "--out", "out.xyz")[0] == 1
    first, *others = [atoms.info.get("error") for atoms in ase.io.read("out.xyz", ":")]
    assert first is None
    for error, message in zip(others, ("in Bohr", "only 0.6 Å apart", "no atoms"), strict=True):
        assert message in error


def test_a_folder_stands_for_its_structures(command):
    for name in ("setup.py", "notes.txt", "other.xyz.partial", "other.xyz.journal", ".a.xyz"):
        Path(name).write_text("1\n\nH 0 0 0\n")
    code, out, _ = command("predict", ".", "--out", "results.xyz")
    assert code == 0
    assert "1 structure," in out  # ethanol.xyz
