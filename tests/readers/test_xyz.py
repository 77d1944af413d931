"""Frames of extended XYZ that are parsed here: the structures that ASE reads."""

from __future__ import annotations

import io

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.extxyz import key_val_str_to_dict
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton.readers import xyz

SYMBOLS = st.sampled_from(["H", "he", "C", "CL", "Na", "X", "Zz", "6", "nan", ""])
WORDS = st.sampled_from(
    ["0", "-1.5", "1e3", "1_0", "nan", "inf", "+.5", "1,5", "0x1", "T", "H", "", "1 2", "\t3\r"]
)
COLUMNS = st.sampled_from(
    [
        *("species:S:1:pos:R:3", "species:S:1:pos:R:3:forces:R:3", "species:S:1:pos:R:3:mass:R:1"),
        *("species:S:1:pos:R:3:charge:R:1:momenta:R:3", "species:S:1:pos:R:3:tags:I:1"),
        *("species:S:1:pos:R:3:move_mask:L:1", "pos:R:3:species:S:1", "species:S:1:pos:R:2"),
        *("species:S:1:pos:R:3:pos:R:3", "species:S:1:pos:R:3:Z:I:1", "species:S:1:pos:R:3:a:R:2"),
        *("species:S:1:pos:R:3:positions:R:3", "species:S:1:pos:R:3:b:R:1:b:R:1", "Z:I:1:pos:R:3"),
        *("species:S:1:pos:R:3:masses:R:1", "species:S:1:pos:R:3:numbers:R:1", "species"),
    ]
)
PAIRS = st.sampled_from(
    [
        *('Lattice="4 0 0 0 5 0 1 0 6"', 'Lattice="1 2 3"', 'pbc="T F T"', "pbc=T", "pbc=5"),
        *("energy=-1.5", "energy=x", 'stress="1 2 3 4 5 6 7 8 9"', "name=water", "id=007", "flag"),
        *("i=-07", "x=1.5e-3", "y=2.", "z=1e5", "big=99999999999999999999", "uid=3", "virial=1.0"),
        *("a=1_0", "s=1.5x", "v:w=3", "n=+4", 'q="7"', 'v="1 2.5"', "stress=1.0", "n=5", 'e=""'),
        *('list="_JSON [[1], [2, 3]]"', 'label="a b"', "charge=1", "charge=-1.0", "e=é", "\\", '"'),
    ]
)


@st.composite
def texts(draw):
    """Draw the text of a frame, with a mistake or none."""
    columns = draw(COLUMNS)
    pairs = draw(st.lists(PAIRS, max_size=4))
    comment = " ".join(draw(st.permutations([*pairs, f"Properties={columns}"])))
    comment = draw(st.sampled_from([comment, comment, " ".join(pairs), ""]))
    width = sum(int(word) for word in columns.split(":")[2::3] if word.isdigit())
    good = st.sampled_from(["0.25", "-1.5", "3", "1e-3"])
    lines = []
    for _ in range(draw(st.integers(0, 3))):
        numbers = [draw(good) for _ in range(max(width - 1, 3))]
        row = [draw(st.sampled_from(["H", "C", "O"])), *numbers]
        if draw(st.integers(0, 5)) == 0:
            k = draw(st.integers(0, len(row) - 1))
            row[k] = draw(WORDS if k else SYMBOLS)
        lines.append(draw(st.sampled_from([" ", "  ", "\t"])).join(row))
    return "\n".join([str(len(lines)), comment, *lines, ""]).encode()


def by_ase(text: bytes) -> Atoms:
    (atoms,) = ase.io.read(io.StringIO(text.decode()), ":", format="extxyz")
    return atoms


def assert_same(found: object, expected: object) -> None:
    """Compare values of any type, with their types."""
    assert type(found) is type(expected)
    if isinstance(found, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    elif isinstance(found, dict):
        assert [*found] == [*expected]
        for key, value in found.items():
            assert_same(value, expected[key])
    else:
        np.testing.assert_equal(found, expected)


def assert_same_atoms(found: Atoms, expected: Atoms) -> None:
    assert_same(found.arrays, expected.arrays)
    assert_same(found.cell.array, expected.cell.array)
    assert_same(found.pbc, expected.pbc)
    assert_same(found.info, expected.info)
    assert len(found.constraints) == len(expected.constraints)
    assert (found.calc is None) == (expected.calc is None)
    if found.calc is not None:
        assert_same(found.calc.results, expected.calc.results)


@given(texts())
def test_frames_are_those_of_ase(text):
    found = xyz._parsed(text)
    if found is not None:
        assert_same_atoms(found, by_ase(text))


@given(st.lists(texts(), min_size=1, max_size=4))
def test_many_frames_are_those_of_ase(drawn):
    try:
        expected = [by_ase(text) for text in drawn]
    except Exception:  # noqa: BLE001 - of any kind
        return
    for found, one in zip(xyz.parse_many(drawn), expected, strict=True):
        assert_same_atoms(found, one)


def test_usual_frames_are_parsed_here():
    water, copper = molecule("H2O"), bulk("Cu", cubic=True)
    water.set_momenta(0.1 * water.positions)
    water.info = {"name": "water", "weights": [1, 2]}
    forces, stress = np.ones((4, 3)), np.arange(6.0)
    copper.calc = SinglePointCalculator(copper, energy=-1.5, forces=forces, stress=stress)
    for atoms in (water, copper):
        text = io.StringIO()
        ase.io.write(text, atoms, format="extxyz")
        content = text.getvalue().encode()
        found = xyz._parsed(content)
        assert found is not None
        assert_same_atoms(found, by_ase(content))


@given(st.lists(PAIRS, max_size=6), st.sampled_from([" ", "  ", "\t", " = ", "="]))
def test_comments_mean_what_ase_says(pairs, between):
    comment = between.join(pairs).strip()
    try:
        expected = key_val_str_to_dict(comment) if comment else {}
    except Exception:  # noqa: BLE001 - of any kind
        return
    assert_same(xyz._information(comment), expected)


def test_frames_with_one_comment_share_nothing():
    text = b'1\nLattice="4 0 0 0 4 0 0 0 4" o="_JSON {\\"a\\": [1]}" w="1 2"\nH 0 0 0\n'
    first, second = xyz.parse_many([text, text])
    first.info["w"][0], first.info["o"]["a"][0] = 7, 7
    first.cell.array[:] = 0
    assert_same_atoms(second, by_ase(text))


@pytest.mark.parametrize(
    "text",
    [
        b"1\n\nH 0 0 0 H\n",
        b"2\n\nH 0 0 0 H\n1.0 2 3\n",
        b"1\nProperties=pos:R:3\n0 0 0\n",
        b"0\n\n",
    ],
)
def test_what_is_odd_is_left_to_ase(text):
    assert xyz._parsed(text) is None


@pytest.mark.parametrize("name", ["lattice", "LATTICE", "cell", "Cell"])
@pytest.mark.parametrize("size", [3, 6, 9])
def test_a_cell_by_another_name_is_refused(name, size):
    text = f'1\n{name}="{" 9" * size}"\nH 0 0 0\n'.encode()
    with pytest.raises(ValueError, match="name it Lattice"):
        xyz.parse(text)


def test_other_values_are_kept_beside_a_cell():
    text = b'1\ncell=tetragonal Lattice="9 0 0 0 9 0 0 0 9"\nH 0 0 0\n'
    assert xyz.parse(text).info == {"cell": "tetragonal"}
