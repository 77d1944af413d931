"""SDF and MOL files: all records, titles and fields, charges, isotopes, and damage."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule

from mlff_triton.readers import FORMATS, frames_of, sdf
from tests.support.molecule_files import same, v2000, v3000

WRITERS = {"V2000": v2000, "V3000": v3000}


@pytest.fixture(params=WRITERS)
def write(request):
    return WRITERS[request.param]


def read(text):
    texts = list(sdf.split(io.BytesIO(text.encode())))
    return FORMATS["sdf"].structures(texts)


def one(text):
    (atoms,) = read(text)
    return atoms


def test_all_records_with_titles_and_fields(write):
    fields = {"id": "007", "score": "-7.25", "count": "3", "two words": "a line\nand another"}
    images = [molecule(name) for name in ("H2O", "CH4", "C6H6")]
    found = read("".join(write(atoms, f"no. {k}", fields) for k, atoms in enumerate(images)))
    assert len(found) == 3
    for k, (atoms, expected) in enumerate(zip(found, images, strict=True)):
        assert same(atoms, expected)
        assert atoms.info == {
            "title": f"no. {k}",
            "id": "007",
            "score": -7.25,
            "count": 3,
            "two words": "a line\nand another",
        }


def test_formal_charges_add_up(write):
    atoms = molecule("CH3COOH")
    assert one(write(atoms, charges={0: -1, 2: -1})).info == {"charge": -2}
    assert one(write(atoms, charges={0: 1, 2: -1})).info == {}


def test_charges_of_atom_lines():
    atoms = molecule("CH3COOH")
    for charge in (-3, -2, -1, 1, 2, 3):
        assert one(v2000(atoms, codes={1: charge})).info == {"charge": charge}
    assert one(v2000(atoms, codes={0: -1, 1: -1})).info["charge"] == -2


def test_charge_lines_replace_those_of_atom_lines():
    text = v2000(molecule("CH4"), codes={0: 3}, charges={1: -1})
    assert one(text).info["charge"] == -1
    assert one(text.replace("M  CHG  1   2  -1", "M  RAD  1   2   2")).info == {}


def test_many_charge_lines():
    atoms = molecule("C6H6")
    text = v2000(atoms, charges=dict.fromkeys(range(8), -1))
    more = "M  CHG  2   9  -1  10   3"
    assert one(text.replace("M  END", f"{more}\nM  END")).info["charge"] == -6


def test_a_field_named_charge_counts_without_formal_charges(write):
    atoms = molecule("CH3COOH")
    assert one(write(atoms, fields={"charge": "-1"})).info == {"charge": -1}
    both = one(write(atoms, fields={"charge": "-1"}, charges={0: -2}))
    assert both.info == {"charge": -2, "total_charge": -1}


def test_isotopes_have_masses():
    atoms = molecule("H2O")
    text = v2000(atoms).replace("M  END", "M  ISO  2   2   2   3   3\nM  END")
    np.testing.assert_allclose(one(text).get_masses(), [15.999, 2.014, 3.016], atol=1e-3)
    text = v2000(atoms).replace(" H ", " D ", 1)
    np.testing.assert_allclose(one(text).get_masses(), [15.999, 2.014, 1.008], atol=1e-3)
    assert not one(v2000(atoms)).has("masses")


def test_columns_without_spaces_and_words_without_columns():
    atoms = molecule("CH4")
    atoms.positions -= 1234.5
    assert same(one(v2000(atoms)), atoms)
    lines = v2000(molecule("H2O")).splitlines()
    lines[4:7] = ["0.0 0.0 0.119262 O 0 5", "0 0.763239 -0.477047 H", "0 -0.763239 -0.477047 H"]
    loose = one("\n".join(lines))
    assert same(loose, molecule("H2O"))
    assert loose.info["charge"] == -1


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_line_endings(write, ending):
    text = write(molecule("H2O"), "water", {"a": "1"}).replace("\n", ending)
    if ending == "\r":
        text = text.replace("$$$$\r", "")
    assert one(text).info == {"title": "water", "a": 1}


def spoiled(lines, k, old, new):
    assert old in lines[k]
    lines[k] = lines[k].replace(old, new, 1)


DAMAGE = {
    "atom": (4, " O ", " Qq", "there is no element 'Qq'"),
    "query": (4, " O ", " R#", "there is no element 'R#'"),
    "position": (4, "0.1193", "0.1C93", "the position of atom 0 holds '0.1C93'"),
    "counts": (3, "  3  0", "  x  0", "the counts line begins with '  x'"),
    "too many": (3, "  3  0", "999  0", "999 atoms and 0 bonds are announced"),
    "version": (3, "V2000", "V4000", "'V4000' is neither"),
    "end": (7, "M  END", "M  EN", "lacks the line 'M  END'"),
    "charge": (7, "M  END", "M  CHG  2   1  -1\nM  END", "is damaged"),
    "charge of nothing": (7, "M  END", "M  CHG  1   9  -1\nM  END", "is damaged"),
    "code": (4, "O   0  0", "O   0 12", "holds '12', not 0 to 7"),
    "drawing": (1, "3D", "2D", None),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_costs_one_record(name):
    number, old, new, message = DAMAGE[name]
    lines = v2000(molecule("H2O")).splitlines()
    spoiled(lines, number, old, new)
    if name == "drawing":
        lines[4:7] = [f"{line[:20]}    0.0000{line[30:]}" for line in lines[4:7]]
        message = "is a drawing in 2D"
    good = v2000(molecule("CH4"))
    found = read(good + "\n".join(lines) + "\n" + good)
    assert len(found) == 3
    assert same(found[0], molecule("CH4"))
    assert same(found[2], molecule("CH4"))
    assert message in found[1]
    assert "\n" not in found[1]


def test_damaged_v3000_records():
    text = v3000(molecule("H2O"))
    for old, new, message in (
        ("COUNTS 3", "COUNTS 4", "3 atoms are listed, and 4 announced"),
        ("COUNTS 3 0 0 0 0", "COUNTS", "lacks its counts"),
        ("END ATOM", "ATOM", "lacks its counts or its block"),
        ("V30 1 O", "V30 1 [O,S]", "there is no element '[O,S]'"),
        (" 0\nM  V30 2", " 0 CHG=x\nM  V30 2", "CHG of atom 0 is 'x'"),
    ):
        assert old in text
        assert message in one(text.replace(old, new, 1))


def test_empty_and_truncated_records_are_not_lost():
    good = v2000(molecule("H2O"))
    found = read(good + "$$$$\n" + good + good[:150])
    assert [isinstance(atoms, str) for atoms in found] == [False, True, False, True]
    assert "empty" in found[1]


@pytest.mark.parametrize("between", ["", "\n", "\r\n"])
def test_mol_files_one_after_another(write, between):
    """Separators may be missing, as if files of one molecule each were concatenated."""
    images = [molecule(name) for name in ("H2O", "CH4", "C6H6")]
    texts = [write(atoms, f"no. {k}").replace("$$$$\n", "") for k, atoms in enumerate(images)]
    found = read(between.join(texts))
    assert [atoms.info["title"] for atoms in found] == ["no. 0", "no. 1", "no. 2"]
    assert all(map(same, found, images))


def test_a_separator_that_is_missing_behind_fields_costs_the_record(write):
    text = write(molecule("H2O"), fields={"a": "1"}).replace("$$$$\n", "")
    bad, good = read(text + write(molecule("CH4")) + write(molecule("CH4")))
    assert "several molecules" in bad
    assert same(good, molecule("CH4"))


def test_fields_that_are_not_divided_by_blank_lines():
    text = v2000(molecule("H2O"), fields={"a": "1", "charge": "-2", "b": "> no head"})
    assert one(text.replace("\n\n>", "\n>")).info == {"a": 1, "b": "> no head", "charge": -2}


def test_fields_of_one_name_are_kept():
    field = ">  <a>\n2\n\n>  <charge>\n+1\n\n>  <charge>\n2\n\n"
    text = v2000(molecule("H2O"), fields={"a": "1"}).replace("$$$$", field + "$$$$")
    assert one(text).info == {"a": 1, "a_": 2, "charge": 1, "total_charge": 2}


def test_charges_in_other_spellings():
    water = molecule("H2O")
    assert one(v2000(water, charges={0: -1}).replace("M  CHG", "M CHG")).info == {"charge": -1}
    assert one(v3000(water, charges={0: -1}).replace("CHG", "chg")).info == {"charge": -1}


BENZENE = [(k + 1, (k + 1) % 6 + 1, 1 + k % 2) for k in range(6)]
FLAT = {
    "no hydrogen": (molecule("C6H6")[:6], BENZENE, True),
    "aromatic": (molecule("C6H6")[:6], [(i, j, 4) for i, j, _ in BENZENE], True),
    "all neighbors": (molecule("CH4"), [(1, k, 1) for k in range(2, 6)], True),
    "planar": (molecule("C6H6"), [*BENZENE, *((k, k + 6, 1) for k in range(1, 7))], False),
    "linear": (molecule("CO2"), [(1, 2, 2), (1, 3, 2)], False),
    "no bonds": (molecule("C6H6"), [], False),
}


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("said", ["  ", "3D"])
def test_drawings_that_do_not_say_so(write, name, said):
    atoms, bonds, is_drawing = FLAT[name]
    atoms.positions[:, 2] = 0
    text = write(atoms).replace("3D", said)
    if write is v2000:
        lines = "".join(f"{i:3}{j:3}{order:3}  0\n" for i, j, order in bonds)
        text = text.replace(f"{len(atoms):3}  0", f"{len(atoms):3}{len(bonds):3}")
    else:
        rows = (f"M  V30 {k} {o} {i} {j}\n" for k, (i, j, o) in enumerate(bonds, 1))
        lines = f"M  V30 BEGIN BOND\n{''.join(rows)}M  V30 END BOND\n"
    found = one(text.replace("M  END", lines + "M  END"))
    assert isinstance(found, str) == (is_drawing and said != "3D")
    assert not isinstance(found, str) or "drawing" in found


def test_files_are_streamed(tmp_path, monkeypatch):
    """A record is parsed before all of the file has been read."""
    path = tmp_path / "many.sdf"
    path.write_text(v2000(molecule("H2O")) * 2000)
    lines = []
    original = sdf.lines_of
    monkeypatch.setattr(
        sdf, "lines_of", lambda file: (lines.append(1) or x for x in original(file))
    )
    assert same(next(iter(frames_of(path))), molecule("H2O"))
    assert len(lines) < 5000


def test_mol_files_have_one_record(tmp_path):
    path = Path(tmp_path, "a.mol")
    path.write_text(v2000(molecule("H2O"), charges={0: 1}).replace("$$$$\n", ""))
    (atoms,) = frames_of(path)
    assert atoms.info == {"charge": 1}


def test_molecules_are_those_of_rdkit(write):
    chem = pytest.importorskip("rdkit.Chem", reason="RDKit is in an optional extra")
    from rdkit.Chem import AllChem

    for smiles in ("CC(=O)[O-]", "[NH3+]CC(=O)[O-]", "C[N+](C)(C)C", "[2H]C([2H])Cl", "[Zn+2]"):
        drawn = chem.AddHs(chem.MolFromSmiles(smiles))
        AllChem.EmbedMolecule(drawn, randomSeed=1)
        atoms = one(chem.MolToMolBlock(drawn, forceV3000=write is v3000))
        assert atoms.numbers.tolist() == [atom.GetAtomicNum() for atom in drawn.GetAtoms()]
        assert atoms.info.get("charge", 0) == chem.GetFormalCharge(drawn)
        positions = drawn.GetConformer().GetPositions()
        np.testing.assert_allclose(atoms.positions, positions, atol=1e-4)
        masses = [atom.GetMass() for atom in drawn.GetAtoms()]
        np.testing.assert_allclose(atoms.get_masses(), masses, atol=0.01)
