"""The grammar of selections."""

from __future__ import annotations

import numpy as np
import pytest
from ase.build import fcc111, molecule
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton.dynamics.selection import select_atoms
from mlff_triton.errors import InputError


def indices(atoms, text):
    return np.flatnonzero(select_atoms(atoms, text)).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("0-2", [0, 1, 2]),
        ("8,0-1,1", [0, 1, 8]),
        (" 0 - 1 , 8 ", [0, 1, 8]),
        ("C", [0, 1]),
        ("C,O", [0, 1, 2]),
        ("x<-1.1", [2, 3]),
        ("x < -1.1, 0", [0, 2, 3]),
        ("H&z>0", [4, 7]),
        ("H&z>0&x>=1e0,3-3", [3, 7]),
        ("z>=0&C", [0, 1]),
        ("5-8&H", [5, 6, 7, 8]),
    ],
)
def test_selections(text, expected):
    assert indices(molecule("CH3CH2OH"), text) == expected


def test_layers_of_a_slab():
    slab = fcc111("Cu", (2, 2, 4), vacuum=5.0)
    assert indices(slab, "z<8") == indices(slab, "0-7") == list(range(8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' selects no atoms, as it is not an index such as 7"),
        ("0,,3", "'' selects no atoms"),
        ("0-", "'0-' selects no atoms, as it is not"),
        ("-1", "'-1' selects no atoms, as it is not"),
        ("9", "atom 9 does not exist: 9 atoms have the indices 0 to 8"),
        ("3-9", "atom 9 does not exist"),
        ("5-2", "the range 5-2 selects no atom: write 2-5"),
        ("c", "'c' selects no atoms, as it is not"),
        ("Cu", "'Cu' selects no atom of 'C2H6O'"),
        ("z<-9", r"'z<-9' selects no atom: z lies between -0\.89 and 0\.89 Å"),
        ("C&O", "'C&O' selects no atom of"),
        ("0,z<-9", "'z<-9' selects no atom"),
        ("z=0", "'z=0' selects no atoms, as it is not"),
        ("z<nan", "'z<nan' selects no atoms, as it is not"),
        ("z<inf", "'z<inf' selects no atoms, as it is not"),
        ("w<3", "'w<3' selects no atoms, as it is not"),
        ("0:3", "'0:3' selects no atoms, as it is not"),
        ("9" * 9999, "selects no atoms, as it is not"),
        ("C\x1b[31m", r"\\x1b"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(InputError, match=message) as error:
        select_atoms(molecule("CH3CH2OH"), text)
    assert len(str(error.value)) < 250


@given(st.text("0123456789-,&<>=xyzCHO. e+\n", max_size=20))
def test_any_text_selects_atoms_or_is_refused(text):
    try:
        found = select_atoms(molecule("CH3CH2OH"), text)
    except InputError:
        return
    assert found.any()
