"""Structures read from files, and shipped ones."""

from __future__ import annotations

import os
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart, read_structure
from mlff_triton.dynamics.outputs import RESTART
from mlff_triton.dynamics.structures import read_images
from mlff_triton.dynamics.trajectories import write_topology
from mlff_triton.dynamics.trajectories.frame import LABELS
from mlff_triton.errors import InputError
from tests.support.springs import Springs, stop_at


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


WATER = """\
CRYST1   10.000   11.000   12.000  90.00  90.00  90.00 P 1           1
ATOM      1  OW  HOH A  41       1.000   2.000   3.000  1.00  0.00           O
ATOM      2  HW1 HOH A  41       1.960   2.000   3.000  1.00  0.00           H
ATOM      3  HW2 HOH A  42       0.760   2.930   3.000  1.00  0.00           H
END
"""


def test_a_cell_can_be_dropped(tmp_path):
    (tmp_path / "a.pdb").write_text(WATER)
    atoms = read_structure(tmp_path / "a.pdb", periodic=False)
    assert not atoms.pbc.any()
    assert atoms.cell.rank == 0


def test_names_of_atoms_and_residues_are_kept(tmp_path):
    """In topologies and trajectories, also of continued runs and of some systems only."""
    (tmp_path / "a.pdb").write_text(WATER)
    systems = [molecule("H2O"), read_structure(tmp_path / "a.pdb", periodic=False)]
    systems[0].positions = systems[1].positions
    for trajectory in ("xyz", "dcd"):
        folder = tmp_path / trajectory
        settings = Settings(stages=(Stage("nve", 4),), every=2, trajectory=trajectory)
        springs = Springs(systems[1].positions)
        simulation = Simulation.start(systems, springs, settings, folder)
        assert not simulation.run(should_stop=stop_at(simulation, 2), block=1)
        assert Simulation.resume(load_restart(folder / RESTART), springs, folder).run()
    files = [tmp_path / "dcd" / "topology-001.pdb", tmp_path / "xyz" / "trajectory-001.xyz"]
    for read in (ase.io.read(files[0]), *ase.io.read(files[1], index=":")):
        assert read.arrays["atomtypes"].tolist() == ["OW", "HW1", "HW2"]
        assert read.arrays["residuenames"].tolist() == ["HOH"] * 3
        assert read.arrays["residuenumbers"].tolist() == [41, 41, 42]
    other = ase.io.read(tmp_path / "xyz" / "trajectory-000.xyz")
    assert not set(LABELS) & set(other.arrays)
    again = read_structure(files[1])
    assert again.arrays["atomtypes"].tolist() == ["OW", "HW1", "HW2"]


def test_names_that_are_not_words_are_dropped(tmp_path):
    """A column of text cannot hold them."""
    (tmp_path / "a.pdb").write_text(WATER.replace("HOH A  42", "    A  42"))
    atoms = read_structure(tmp_path / "a.pdb")
    assert set(LABELS) & set(atoms.arrays) == {"atomtypes", "residuenumbers"}


def test_residues_beyond_the_columns_of_a_topology(tmp_path):
    atoms = molecule("H2O")
    atoms.set_array("residuenumbers", np.array([9999, 10_000, 123_456]))
    write_topology(tmp_path / "a.pdb", atoms)
    assert ase.io.read(tmp_path / "a.pdb").arrays["residuenumbers"].tolist() == [9999, 0, 3456]
    assert atoms.arrays["residuenumbers"][1] == 10_000


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nan.xyz", "1\n\nH 0 nan 0\n", "the position of atom 0 is NaN"),
        ("none.xyz", "0\n\n", "contains no atoms"),
        ("empty.xyz", "", "cannot be read as a structure|contains no atoms"),
        ("bad.xyz", "two\n", "cannot be read as a structure"),
        ("odd.thing", "what\n", "has a format that is unknown"),
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


def test_files_that_would_fill_the_memory_are_refused(tmp_path):
    huge = tmp_path / "huge.xyz"
    huge.write_bytes(b"")
    os.truncate(huge, 10**10)
    with pytest.raises(InputError, match=r"has 10 GB, more than 4: extract some frames"):
        read_structure(huge)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("endless.extxyz", "1000000000000000\n\nH 0 0 0\n"),
        ("POSCAR", "C H\n1.0\n9 0 0\n0 9 0\n0 0 9\nC H\n999999999999999 1 x\nDirect\n0 0 0\n"),
    ],
)
def test_a_number_of_atoms_that_no_file_holds_is_refused(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match="announces 1000000000000000 atoms"):
        read_structure(path)


LATE = """ITEM: TIMESTEP
5000000
ITEM: NUMBER OF ATOMS
1
ITEM: BOX BOUNDS pp pp pp
0 9
0 9
0 9
ITEM: ATOMS id element x y z
1 H 0 0 0
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dated.xyz", "1\n20261123 optimized\nH 0 0 0\n"),
        ("POSCAR", "20261123 H\n1.0\n9 0 0\n0 9 0\n0 0 9\nH\n1\nDirect\n0 0 0\n"),
        ("late.lammpstrj", LATE),
    ],
)
def test_other_large_numbers_announce_no_atoms(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    assert len(read_images(path)[0]) == 1


def test_control_characters_of_files_stay_out_of_messages(tmp_path):
    path = tmp_path / "red.cif"
    path.write_bytes(b"data_x\n\x1b[31mred\n")
    with pytest.raises(InputError) as raised:
        read_structure(path)
    assert str(raised.value).isprintable()


def test_unknown_users_are_missing_files():
    with pytest.raises(InputError, match="there is no structure"):
        read_structure("~nosuchuser/x.xyz")
