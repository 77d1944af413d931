"""Text of structures and results: the bytes of ASE's own writer."""

from __future__ import annotations

import io

import ase.io
import numpy as np
from ase import Atoms
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlff_triton.statics.result_text import COLUMNS, Shown, text_of, with_results

NUMBERS = st.one_of(
    st.floats(-1e3, 1e3), st.sampled_from([0.0, -0.0, 1e-9, 0.123456785, 1e7, 1e300, np.nan])
)


def floats(*shape):
    return arrays.arrays(np.float64, shape, elements=NUMBERS)


@st.composite
def frames(draw):
    """Draw a structure that is plain, or has what only ASE writes, with some results."""
    n = draw(st.integers(0, 4))
    numbers = draw(st.lists(st.integers(0, 118), min_size=n, max_size=n))
    cell = draw(st.one_of(st.none(), floats(3, 3)))
    pbc = draw(st.lists(st.booleans(), min_size=3, max_size=3))
    atoms = Atoms(numbers, draw(floats(n, 3)), cell=cell, pbc=pbc)
    if draw(st.booleans()):
        atoms.set_tags(range(n))
    shapes = {"energy": (), "forces": (n, 3), "stress": (6,), "charges": (n,), "dipole": (3,)}
    chosen = draw(st.lists(st.sampled_from([*shapes]), unique=True))
    results = {name: draw(floats(*shapes[name])) for name in chosen}
    return Shown(atoms, results, {})


def by_ase(frame):
    text = io.StringIO()
    ase.io.write(text, with_results(frame.atoms, frame.results), format="extxyz")
    return text.getvalue()


@given(st.lists(frames(), max_size=5))
def test_bytes_are_those_of_ase(drawn):
    assert text_of(drawn).decode() == "".join(map(by_ase, drawn))


def test_information_precedes_the_results():
    atoms = Atoms("OH", np.eye(2, 3), info={"name": "a b"})
    frame = Shown(atoms, {"energy": -1.5, "forces": np.zeros((2, 3))}, {"error": None, "step": 3})
    comment = text_of([frame]).decode().splitlines()[1]
    columns = f"species:S:1:pos:R:3:{COLUMNS['forces']}"
    assert comment == f'Properties={columns} name="a b" step=3 energy=-1.5 pbc="F F F"'
