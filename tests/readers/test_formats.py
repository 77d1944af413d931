"""All records of all formats, charges of MOL2 and PDB, announced numbers, and folders."""

from __future__ import annotations

import gzip
import resource
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.db import connect

from mlff_triton.dynamics.structures import read_images, read_structure
from mlff_triton.errors import InputError
from mlff_triton.readers import ase_frames, find_format, frames_of, is_structure_file
from mlff_triton.readers.files import name_of_frame, read_frame
from tests.support.molecule_files import mol2, pdb, same, v2000

NAMES = ("H2O", "CH4", "NH3")
IMAGES = [molecule(name) for name in NAMES]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def cif(images):
    ase.io.write("some.cif", images)
    return Path("some.cif").read_text()


CRYSTALS = [bulk("NaCl", "rocksalt", a=5.64), bulk("Cu", cubic=True), bulk("Si")]
GRO = """water, t= {k}
    2
    1WAT     O    1   0.100   0.200   0.30{k}
    1WAT     H    2   0.196   0.200   0.30{k}
   2.00000   2.00000   2.00000
"""


def texts():
    return {
        "a.sdf": "".join(map(v2000, IMAGES)),
        "a.mol2": "".join(map(mol2, IMAGES)),
        "a.pdb": pdb(IMAGES),
        "trajectory.pdb": "".join(pdb([atoms]) for atoms in IMAGES),
        "a.cif": "data_global\n_journal_name x\n" + cif(CRYSTALS),
        "a.gro": "".join(GRO.format(k=k) for k in range(3)),
    }


@pytest.mark.parametrize("name", ["a.sdf", "a.mol2", "a.pdb", "trajectory.pdb"])
def test_all_molecules_of_a_file(name):
    Path(name).write_text(texts()[name])
    with gzip.open(f"{name}.gz", "wt") as file:
        file.write(texts()[name])
    for path in (Path(name), Path(f"{name}.gz")):
        found = list(frames_of(path))
        assert len(found) == 3
        assert all(map(same, found, IMAGES))


def test_all_blocks_of_a_cif():
    Path("a.cif").write_text(texts()["a.cif"])
    found = list(frames_of(Path("a.cif")))
    assert [atoms.get_chemical_formula() for atoms in found] == ["ClNa", "Cu4", "Si2"]
    assert [atoms.info["title"] for atoms in found] == ["image0", "image1", "image2"]


@pytest.mark.parametrize("images", [IMAGES, CRYSTALS])
def test_all_structures_of_a_gen(images):
    text = ""
    for atoms in images:
        ase.io.write("one.gen", atoms, format="gen")
        text += Path("one.gen").read_text() + "\n"
    Path("a.gen").write_text(text)
    found = list(frames_of(Path("a.gen")))
    assert len(found) == 3
    assert [a.get_chemical_formula() for a in found] == [a.get_chemical_formula() for a in images]
    for atoms, expected in zip(found, images, strict=True):
        np.testing.assert_allclose(atoms.cell.array, expected.cell.array, atol=1e-6)


def test_all_frames_of_a_gro():
    Path("a.gro").write_text(texts()["a.gro"] + "\n")
    found = list(frames_of(Path("a.gro")))
    np.testing.assert_allclose([atoms.positions[0, 2] for atoms in found], [3.0, 3.01, 3.02])
    assert read_frame(Path("a.gro")).number == 2


@pytest.mark.parametrize("name", ["a.traj", "a.extxyz", "a.json", "XDATCAR", "a.db", "a.xsf"])
def test_all_frames_that_ase_reads(name):
    images = [bulk("Cu", a=3.6 + 0.1 * k) for k in range(3)]
    kind = {"XDATCAR": "vasp-xdatcar"}.get(name)
    ase.io.write(name, images, format=kind)
    found = list(frames_of(Path(name)))
    np.testing.assert_allclose(
        [atoms.get_volume() for atoms in found], [a.get_volume() for a in images]
    )


DAMAGE = {
    "a.sdf": (" C   0", " Qq  0"),
    "a.mol2": (" C 1 LIG", " Xx 1 LIG"),
    "a.pdb": (
        "MODEL        2\nHETATM    1  C   LIG A   1       0",
        "MODEL        2\nHETATM    1  C   LIG A   1       x",
    ),
    "a.cif": ("Cu ", "Cz "),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_costs_one_record(name):
    old, new = DAMAGE[name]
    text = texts()[name]
    assert old in text
    Path(name).write_text(text.replace(old, new))
    found = list(frames_of(Path(name)))
    assert [isinstance(atoms, str) for atoms in found] == [False, True, False]
    assert found[1].startswith("the frame cannot be read: ")


def test_models_share_the_cell_before_them():
    head = "CRYST1   20.000   21.000   22.000  90.00  90.00  90.00 P 1           1"
    Path("a.pdb").write_text(pdb(IMAGES, head=head))
    found = list(frames_of(Path("a.pdb")))
    assert all(np.allclose(atoms.cell.lengths(), [20, 21, 22]) for atoms in found)
    assert all(atoms.pbc.all() for atoms in found)


def test_a_model_without_atoms_is_a_frame():
    Path("a.pdb").write_text("MODEL        1\nENDMDL\n" + pdb(IMAGES))
    first, *others = frames_of(Path("a.pdb"))
    assert first == "the frame is empty"
    assert len(others) == 3


def test_models_that_only_begin():
    Path("a.pdb").write_text(pdb(IMAGES).replace("ENDMDL\n", ""))
    found = list(frames_of(Path("a.pdb")))
    assert list(map(len, found)) == list(map(len, IMAGES))


def test_alternate_positions_are_refused():
    lines = pdb(IMAGES[:1]).splitlines()
    k = next(k for k, line in enumerate(lines) if line.startswith("HETATM"))
    first, second = (f"{lines[k][:16]}{letter}{lines[k][17:]}" for letter in "AB")
    for rows, is_refused in (([first], False), ([first, second], True)):
        Path("a.pdb").write_text("\n".join([*lines[:k], *rows, *lines[k + 1 :]]))
        (found,) = frames_of(Path("a.pdb"))
        assert isinstance(found, str) == is_refused
    assert "has alternate positions, 'A' and 'B'" in found


NAMES = {  # atom name and residue: element, without columns 77-78
    (" CA ", "ALA"): "C",
    ("CA  ", "ALA"): "C",
    ("CA  ", " CA"): "Ca",
    (" CD1", "LEU"): "C",
    (" NE2", "HIS"): "N",
    (" HG ", "SER"): "H",
    ("HG11", "VAL"): "H",
    ("1HG1", "VAL"): "H",
    (" HE1", "LIG"): "H",
    ("HO11", "LIG"): "H",
    ("CL1 ", "LIG"): "Cl",
    ("FE  ", "HEM"): "Fe",
    (" NA ", "HEM"): "N",
    (" NA ", " NA"): "Na",
    ("SOD ", "SOD"): "Na",
    ("SE  ", "MSE"): "Se",
    (" CL1", "LIG"): None,
    ("CL12", "LIG"): None,
    ("EPW ", "HOH"): None,
}


@pytest.mark.parametrize("name", NAMES)
def test_elements_of_names_in_pdb_files(name):
    atom, residue = name
    line = f"HETATM    1 {atom} {residue} A   1      17.047  14.099   3.625  1.00  0.00"
    Path("a.pdb").write_text(f"{line}\nEND\n")
    (found,) = frames_of(Path("a.pdb"))
    if NAMES[name] is None:
        assert "write it in columns 77-78" in found
    else:
        assert found.get_chemical_formula() == NAMES[name]


GROMACS_NAMES = {  # atom names of one residue: elements
    ("ALA", "N CA CB HB1"): "N C C H",
    ("CYS", "HG"): "H",
    ("SOL", "OW HW1 HW2"): "O H H",
    ("TIP3", "OH2 H1 H2"): "O H H",
    ("NA", "NA"): "Na",
    ("NA+", "NA+"): "Na",
    ("ION", "NA"): "Na",
    ("CL", "CL"): "Cl",
    ("SOD", "SOD"): "Na",
    ("LIG", "CA HE1 OD"): "C H O",
    ("LIG", "C1 Cl1 Na"): "C Cl Na",
    ("LIG", "C1 CL1"): None,
    ("HEM", "FE C1"): None,
    ("SOL", "OW HW1 HW2 MW"): None,
}


@pytest.mark.parametrize("suffix", ["gro", "g96"])
@pytest.mark.parametrize("residue", GROMACS_NAMES)
def test_elements_of_names_in_gromacs_files(residue, suffix):
    name, atoms = residue[0], residue[1].split()
    if suffix == "gro":
        rows = [
            f"    1{name:5}{atom:>5}{k:5}{k:8.3f}{0:8.3f}{0:8.3f}" for k, atom in enumerate(atoms)
        ]
        text = "\n".join(["title", str(len(rows)), *rows, "9.0 9.0 9.0", ""])
    else:
        rows = [f"    1 {name:5} {atom:5} {k} {k:.3f} 0.0 0.0" for k, atom in enumerate(atoms)]
        text = "\n".join(["TITLE", "t", "END", "POSITION", *rows, "END", "BOX", "9 9 9", "END", ""])
    path = Path(f"a.{suffix}")
    path.write_text(text)
    if GROMACS_NAMES[residue] is None:
        with pytest.raises(InputError):
            read_images(path)
    else:
        (found,) = read_images(path)
        assert found.get_chemical_symbols() == GROMACS_NAMES[residue].split()


CAR = """!BIOSYM archive 3
PBC=ON
title
!DATE
PBC    9.0000    9.0000    9.0000   90.0000   90.0000   90.0000 ({group})
O1       0.000000000    0.000000000    0.000000000 XXXX 1      xx      O   0.000
end
end
"""
RES = """TITL x
CELL 0.71 9 9 9 90 90 90
{group}
SFAC O
O 1 0.1 0.1 0.1 1.0
END
"""


@pytest.mark.parametrize(
    ("name", "text", "group", "is_whole"),
    [
        ("a.car", CAR, "P1", True),
        ("a.car", CAR, "P21", False),
        ("a.res", RES, "LATT -1", True),
        ("a.res", RES, "LATT 1", False),
        ("a.res", RES, "LATT -1\nSYMM -X,0.5+Y,-Z", False),
    ],
)
def test_a_cell_without_all_its_atoms_is_refused(name, text, group, is_whole):
    Path(name).write_text(text.format(group=group))
    if is_whole:
        assert read_structure(name).pbc.all()
    else:
        with pytest.raises(InputError, match="generates the others"):
            read_structure(name)


GAUSSIAN = "# hf {units}\n\nt\n\n0 1\nO 0.0 0.0 0.0\nH{isotope} 0.0 0.0 0.96\n\n"


def test_isotopes_and_units_of_gaussian_inputs():
    Path("a.gjf").write_text(GAUSSIAN.format(units="", isotope="(Iso=2)"))
    assert read_structure("a.gjf").get_masses() == pytest.approx([15.999, 2.01410178])
    for units in ("units=au", "units=(bohr,deg)"):
        Path("a.gjf").write_text(GAUSSIAN.format(units=units, isotope=""))
        with pytest.raises(InputError, match="positions are in Bohr"):
            read_structure("a.gjf")


def test_files_of_eon_are_periodic():
    ase.io.write("a.con", bulk("Cu"), format="eon")
    assert read_structure("a.con").pbc.all()


DUMP = """ITEM: TIMESTEP
0
ITEM: NUMBER OF ATOMS
1
ITEM: BOX BOUNDS pp pp pp
0 9
0 9
0 9
ITEM: ATOMS id type{column} x y z
1 1{value} 0 0 0
"""
DATA = (
    "x\n\n1 atoms\n1 atom types\n0 9 xlo xhi\n0 9 ylo yhi\n0 9 zlo zhi\n"
    "{masses}\nAtoms # atomic\n\n1 1 0 0 0\n"
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.lammpstrj", DUMP.format(column="", value=""), "types of atoms, but no elements"),
        ("a.lammpstrj", DUMP.format(column=" element", value=" C"), "C"),
        ("a.lammpstrj", DUMP.format(column=" mass", value=" 12.011"), "C"),
        (
            "a.lammpstrj",
            "ITEM: UNITS\nlj\n" + DUMP.format(column=" element", value=" C"),
            "its units are 'lj'",
        ),
        ("a.lammps-data", DATA.format(masses=""), "types of atoms, but no elements"),
        ("a.lammps-data", DATA.format(masses="\nMasses\n\n1 12.011\n"), "C"),
    ],
)
def test_types_in_files_of_lammps_are_not_elements(name, text, expected):
    Path(name).write_text(text)
    if expected == "C":
        (found,) = read_images(Path(name))
        assert found.get_chemical_symbols() == ["C"]
    else:
        with pytest.raises(InputError, match=expected):
            read_images(Path(name))


@pytest.mark.parametrize(
    ("group", "is_whole"),
    [("", True), ("P 1           1", True), ("P1", True), ("P 21 21 21    4", False)],
)
def test_a_cell_of_a_pdb_file_without_all_its_atoms_is_refused(group, is_whole):
    head = f"CRYST1    9.000    9.000    9.000  90.00  90.00  90.00 {group}\n"
    Path("a.pdb").write_text(head + pdb(IMAGES[:1]))
    if is_whole:
        assert read_structure("a.pdb").pbc.all()
    else:
        with pytest.raises(InputError, match="symmetry P 21 21 21 generates the others"):
            read_structure("a.pdb")
    assert not read_structure("a.pdb", periodic=False).pbc.any()


def test_deuterium_in_pdb_files():
    line = "ATOM      1  D1  HOH A   1      17.047  14.099   3.625  1.00  0.00           D"
    Path("a.pdb").write_text(f"{line}\nEND\n")
    (found,) = frames_of(Path("a.pdb"))
    assert found.get_chemical_symbols() == ["H"]
    assert found.get_masses().tolist() == [2.01410178]


SITES = """data_x
_cell_length_a 9
_cell_length_b 9
_cell_length_c 9
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
{symmetry}
loop_
_atom_site_label
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
{column}
{first} 0 0 0 {one}
C1 .2 0 0 {two}
"""


@pytest.mark.parametrize(
    ("first", "column", "values", "symmetry", "reason"),
    [
        ("Cl1", "_atom_site_type_symbol", "Cl C", "", ""),
        ("CL1", "_atom_site_type_symbol", "Cl C", "", ""),
        ("Cl1", "_atom_site_type_symbol", "CL C", "", "write it as Cl or C"),
        ("CL1", "_atom_site_charge", "0 0", "", "write it as Cl or C"),
        ("CA1", "_atom_site_charge", "0 0", "", ""),
        ("C2", "_atom_site_disorder_group", "1 .", "", ""),
        ("C2", "_atom_site_disorder_group", "1 2", "", "keep one disorder group"),
        (
            "C2",
            "_atom_site_charge",
            "0 0",
            "_space_group_name_Hall '-P 2ybc'",
            "add the operations",
        ),
        ("C2", "_atom_site_charge", "0 0", "_space_group_name_Hall 'P 1'", ""),
    ],
)
def test_sites_of_cif_files_that_would_be_misread(first, column, values, symmetry, reason):
    one, two = values.split()
    text = SITES.format(first=first, column=column, one=one, two=two, symmetry=symmetry)
    Path("a.cif").write_text(text)
    (found,) = frames_of(Path("a.cif"))
    if reason:
        assert reason in str(found)
    else:
        assert found.get_chemical_formula() == ("C2" if first[1:2] not in "lL" else "CCl")


@pytest.mark.parametrize("occupancies", [[0.5], [0.5, 0.5], [0.98]])
def test_disorder_in_cif_files_is_refused(occupancies):
    text = texts()["a.cif"]
    ase.io.write("whole.cif", bulk("Cu"))
    whole = Path("whole.cif").read_text()
    (row,) = [line for line in whole.splitlines() if line.split()[:1] == ["Cu"]]
    rows = [
        f"  {element} {row.split(maxsplit=1)[1].replace('1.0000', f'{share:.4f}')}"
        for element, share in zip(["Cu", "Ag"], occupancies, strict=False)
    ]
    Path("a.cif").write_text(text + whole.replace(row, "\n".join(rows)))
    *good, bad = frames_of(Path("a.cif"))
    assert not any(isinstance(atoms, str) for atoms in good)
    assert "takes a site with an occupancy of" in bad


@pytest.mark.parametrize(
    ("columns", "charge"),
    [
        ({}, None),
        ({0: "2-"}, -2),
        ({0: "-2"}, -2),
        ({0: "1-", 1: "1+"}, 0),
        ({0: "2+", 2: "1-"}, 1),
        ({1: " 0"}, None),
        ({1: "+x"}, "+x in columns 79-80 of atom 1"),
    ],
)
def test_charges_of_pdb_files(columns, charge):
    Path("a.pdb").write_text(pdb(IMAGES[:1], columns))
    (atoms,) = frames_of(Path("a.pdb"))
    assert atoms.info.get("charge") == charge


def test_old_pdb_files_name_themselves_in_these_columns():
    line = "ATOM      1  N   THR     1      17.047  14.099   3.625  1.00 13.79      1CRN  7-"
    Path("a.pdb").write_text(line + "\nEND\n")
    (atoms,) = frames_of(Path("a.pdb"))
    assert "charge" not in atoms.info
    assert atoms.numbers.tolist() == [7]


@pytest.mark.parametrize(
    ("options", "charge"),
    [
        ({}, None),
        ({"charges": [-0.83, 0.415, 0.415]}, None),
        ({"charges": [-1.3, 0.15, 0.151]}, -1),
        ({"charges": [-0.83, 0.415, 0.0]}, "-0.415 (the sum of the charges of its atoms)"),
        ({"charges": [float("nan"), 0, 0]}, "nan (the sum of the charges of its atoms)"),
        ({"formal": {0: -2}}, -2),
        ({"formal": {0: -1, 1: 1}, "charges": [-0.83, 0.415, 0.0]}, None),
    ],
)
def test_charges_of_mol2_files(options, charge):
    Path("a.mol2").write_text(mol2(IMAGES[0], "water", **options))
    (atoms,) = frames_of(Path("a.mol2"))
    assert atoms.info.get("charge") == charge
    assert atoms.info["title"] == "water"


def test_atom_types_of_mol2_files():
    atoms = Atoms("CCClCaNO", np.eye(6, 3) + np.arange(6)[:, None])
    Path("a.mol2").write_text(mol2(atoms, types=["C.ar", "ca", "cl", "Ca", "N.pl3", "oh"]))
    assert same(next(frames_of(Path("a.mol2"))), atoms)
    Path("a.mol2").write_text(mol2(atoms, types=["CA", "ca", "cl", "Ca", "N.pl3", "oh"]))
    assert "type 'CA' of atom 0" in next(frames_of(Path("a.mol2")))


@pytest.mark.parametrize("name", ["si", "se", "zn", "pt", "co"])
def test_small_letters_that_are_no_types_of_amber(name):
    Path("a.mol2").write_text(mol2(molecule("H2O"), types=[name, "ho", "hw"]))
    (found,) = frames_of(Path("a.mol2"))
    assert f"the type {name!r} of atom 0" in found


def test_charges_of_other_files():
    Path("a.com").write_text("#p b3lyp\n\ntitle\n\n-2 1\nO 0.0 0.0 0.0\nO 0.0 0.0 1.4\n\n")
    (atoms,) = frames_of(Path("a.com"))
    assert atoms.info["charge"] == -2
    with connect("a.db") as database:
        database.write(molecule("OH"), net_charge=-1, label="hydroxide")
    (atoms,) = frames_of(Path("a.db"))
    assert (atoms.info["net_charge"], atoms.info["label"]) == (-1, "hydroxide")


def test_frames_are_chosen_by_name():
    ase.io.write("a.xyz", IMAGES, format="extxyz")
    ase.io.write("a.traj", IMAGES)
    Path("a.sdf").write_text(texts()["a.sdf"])
    for name, default in (("a.xyz", 2), ("a.traj", 2), ("a.sdf", 0)):
        for given, number in (("", default), ("@1", 1), ("@-3", 0), ("@-1", 2)):
            path, wanted = name_of_frame(name + given)
            frame = read_frame(path, wanted)
            assert (frame.number, frame.total) == (number, 3)
            assert same(frame.structure, IMAGES[number])
        for given in ("@3", "@-4"):
            with pytest.raises(InputError, match=f"no frame {given[1:]}: its 3 frames"):
                read_frame(*name_of_frame(name + given))
    Path("b@1").write_text("")
    assert name_of_frame("b@1") == (Path("b@1"), None)


BOMBS = {
    "a.xyz": "2\nProperties=species:S:1:pos:R:3:x:S:999999999\nH 0 0 0\nH 0 0 0.74\n",
    "b.xyz": '2\n"Properties"="species:S:1:pos:R:3:x:R:9_9_9_999_999"\nH 0 0 0\nH 0 0 0.74\n',
    "c.xyz": "999999999\n\nH 0 0 0\n",
    "a.gro": "title\n999999999\n",
    "a.gen": "999999999 C\nH\n1 1 0 0 0\n",
    "a.cfg": "Number of particles = 999999999\n.NO_VELOCITY.\nentry_count = 3\n",
    "a.cube": "x\ny\n999999999 0 0 0\n2 1 0 0\n2 0 1 0\n2 0 0 1\n1 1 0 0 0\n",
    "a.lammps-data": "x\n\n999999999 atoms\n1 atom types\n0 9 xlo xhi\n\nAtoms # atomic\n\n",
    "a.xsf": "CRYSTAL\nPRIMVEC\n9 0 0\n0 9 0\n0 0 9\nPRIMCOORD\n999999999 1\nH 0 0 0\n",
    "a.lammpstrj": "ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n999999999\nITEM: BOX BOUNDS\n",
    "POSCAR": "C\n1.0\n9 0 0\n0 9 0\n0 0 9\nC\n999999999\nDirect\n0 0 0\n",
    "a.sdf": "\n  x\n\n999999  0  0  0  0  0  0  0  0  0999 V2000\nM  END\n",
    "v.sdf": "\n\n\nV3000\nM  V30 COUNTS 999999999\nM  V30 BEGIN ATOM\nM  V30 END ATOM\nM  END\n",
    "a.mol2": "@<TRIPOS>MOLECULE\nx\n999999999\n@<TRIPOS>ATOM\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_announced_numbers_take_no_memory(name):
    Path(name).write_text(BOMBS[name])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (1 << 29), limits[1]))
    try:
        (found,) = frames_of(Path(name))
    except InputError as error:
        found = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert isinstance(found, str)
    assert "\n" not in found
    assert "allocate" not in found
    assert "MemoryError" not in found


def test_a_bad_comment_costs_one_frame():
    good = "2\nProperties=species:S:1:pos:R:3\nH 0 0 0\nH 0 0 0.74\n"
    Path("a.xyz").write_text(good + BOMBS["a.xyz"] + good)
    found = list(frames_of(Path("a.xyz")))
    assert [isinstance(atoms, str) for atoms in found] == [False, True, False]
    assert "announces 1000000003 columns, and the atoms have 4" in found[1]


def test_comments_with_large_numbers_of_columns_that_exist():
    words = " ".join(["0.5"] * 300)
    Path("a.xyz").write_text(
        f"1\nProperties=species:S:1:pos:R:3:x:R:300 at=12:34567\nH 0 0 0 {words}\n"
    )
    (atoms,) = frames_of(Path("a.xyz"))
    assert atoms.arrays["x"].shape == (1, 300)


def test_structure_files_of_a_folder():
    yes = [
        "a.xyz",
        "b.SDF",
        "c.mol2",
        "d.pdb",
        "e.cif",
        "f.gro",
        "g.traj",
        "POSCAR",
        "x.xyz.gz",
        "h.vasp",
    ]
    no = ["a.py", "run.sh", "notes.txt", "a.xyz.partial", "a.xyz.journal", "a.xyz.lock"]
    no += ["a.xyz.new", ".hidden.xyz", "results.h5", "POSCAR.partial", "log.csv", "README"]
    assert [name for name in yes + no if is_structure_file(Path(name))] == yes
    assert find_format(Path("a.xyz.gz")).name == "xyz"


def test_frames_behind_a_damaged_one_are_not_lost_in_silence():
    """ASE cannot go on behind a damaged frame, which therefore is an error."""
    ase.io.write("XDATCAR", [bulk("Cu")] * 3, format="vasp-xdatcar")
    text = (
        Path("XDATCAR")
        .read_text()
        .replace("configuration=     2\n 0", "configuration=     2\n x", 1)
    )
    Path("XDATCAR").write_text(text)
    if "\n x" in text:
        with pytest.raises(InputError, match="XDATCAR cannot be read as a structure"):
            list(ase_frames(Path("XDATCAR")))
    ase.io.write("XDATCAR", [bulk("Cu")] * 3, format="vasp-xdatcar")
    head, mark, tail = Path("XDATCAR").read_text().partition("configuration=     2\n")
    assert mark
    Path("XDATCAR").write_text(f"{head}{mark}x{tail}")
    with pytest.raises(InputError, match="XDATCAR cannot be read as a structure"):
        list(ase_frames(Path("XDATCAR")))


@pytest.mark.parametrize("name", ["a.csv", "a.npy", "notes"])
def test_unknown_formats_take_one_line(name):
    Path(name).write_text("energy,forces\n1,2\n")
    with pytest.raises(InputError, match=f"^{name} has a format that is unknown.*extended XYZ"):
        list(frames_of(Path(name)))
    with pytest.raises(InputError, match=f"^{name} has a format that is unknown"):
        read_frame(Path(name), 0)
