"""Structures read from files, and shipped ones."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mlff_triton.dynamics import (
    read_structure,
)
from mlff_triton.errors import InputError


def test_the_shipped_structure_is_a_peptide_in_water():
    atoms = read_structure("alanine-dipeptide-water")
    assert atoms.get_chemical_formula() == "C6H108N2O50"
    assert not atoms.pbc.any()
    waters = np.arange(22, 166).reshape(-1, 3)
    assert (atoms.numbers[waters] == [8, 1, 1]).all()
    bonds = np.linalg.norm(atoms.positions[waters[:, 1:]] - atoms.positions[waters[:, :1]], axis=2)
    assert (abs(bonds - 0.957) < 0.002).all()
    distances = atoms.get_all_distances() + 9 * np.eye(166)
    assert distances.min() > 0.9


PDB_ATOM = "ATOM      1  O   HOH A   1       1.000   2.000   3.000  1.00  0.00           O  \n"


@pytest.mark.parametrize(
    ("text", "pbc"),
    [
        (PDB_ATOM, False),
        ("CRYST1   10.000   11.000   12.000  90.00  90.00  90.00 P 1           1\n", True),
        ("CRYST1    1.000    1.000    1.000  90.00  90.00  90.00 P 1           1\n", False),
        ("MODEL        1\n", False),
    ],
)
def test_pdb_cells(tmp_path, text, pbc):
    path = tmp_path / "a.pdb"
    path.write_text(text + PDB_ATOM + ("ENDMDL\n" if "MODEL" in text else "") + "END\n")
    atoms = read_structure(path)
    assert atoms.pbc.all() == atoms.pbc.any() == pbc
    assert atoms.cell.rank == (3 if pbc else 0)


def test_structures_keep_only_what_matters(tmp_path):
    atoms = molecule("OH")
    atoms.info |= {"charge": -1, "name": "hydroxide"}
    atoms.set_masses([16.0, 2.0])
    atoms.set_momenta(np.ones((2, 3)))
    ase.io.write(tmp_path / "a.xyz", atoms, format="extxyz")
    ase.io.write(tmp_path / "a.xyz", atoms, format="extxyz", append=True)
    read = read_structure(tmp_path / "a.xyz")
    assert read.info == {"charge": -1}
    assert sorted(read.arrays) == ["masses", "numbers", "positions"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nan.xyz", "1\n\nH 0 nan 0\n", "the position of atom 0 is NaN"),
        ("none.xyz", "0\n\n", "contains no atoms"),
        ("empty.xyz", "", "cannot be read as a structure|contains no atoms"),
        ("bad.xyz", "two\n", "cannot be read as a structure"),
        ("odd.thing", "what\n", "cannot be read as a structure"),
        ("move.xyz", "1\nProperties=species:S:1:pos:R:3:move_mask:L:1\nH 0 0 0 F\n", "constraints"),
    ],
)
def test_bad_structures_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_structure(tmp_path / name)
    with pytest.raises(InputError, match="there is no structure"):
        read_structure(tmp_path / "absent.xyz")


def test_package_data_is_where_the_build_looks():
    import mlff_triton

    assert list((Path(mlff_triton.__file__).parent / "structures").glob("*.xyz"))
