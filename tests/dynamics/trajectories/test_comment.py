"""Information about structures, written to extended XYZ and read by ASE."""

from __future__ import annotations

import json

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlff_triton.dynamics.trajectories.comment import OTHER, RESERVED, to_json
from mlff_triton.dynamics.trajectories.extended_xyz import ExtendedXYZTrajectory
from mlff_triton.dynamics.trajectories.frame import Frame
from mlff_triton.statics.result_text import extended_xyz

ODD_KEYS = (
    "",
    "=",
    " ",
    "virial",
    "uid",
    "a b",
    "a\nb",
    '"',
    "\\",
    "next_pair",
    OTHER,
    "error",
    "step",
)
ODD_TEXTS = (
    *(
        "",
        "=",
        "aGVsbG8=",
        "C:\\data\\",
        "C/C=C\\C",
        'a\\"b',
        "007",
        "1e5",
        "T",
        "F T",
        "None",
        "nan",
    ),
    *(
        "_JSON 5",
        "two\nlines",
        "1 2 3",
        " padded ",
        "{a}",
        "[1",
        "\udc80",
        "Å",
        "水",
        "\x85",
        "١٢",
        ",",
    ),
)
KEYS = st.text() | st.sampled_from([*ODD_KEYS, *sorted(RESERVED)]) | st.integers()
TEXTS = st.text() | st.sampled_from(ODD_TEXTS) | st.text("\\\"'{}[]= \t,TF01")
NUMBERS = st.booleans() | st.integers() | st.floats()
ARRAYS = arrays.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_, np.complex128, "U3"]),
    arrays.array_shapes(min_dims=0, max_side=3, min_side=0),
)
SIMPLE = st.none() | NUMBERS | TEXTS
VALUES = (
    SIMPLE
    | ARRAYS
    | st.recursive(
        SIMPLE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    )
)
INFO = st.dictionaries(KEYS, VALUES, max_size=5)


def water(info):
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.74]], info=info)
    atoms.calc = SinglePointCalculator(atoms, energy=-1.5, forces=np.ones((2, 3)))
    return atoms


def assert_kept(found, info):
    """Compare values as JSON, in which an array equals its list."""
    assert found.get_potential_energy() == -1.5
    np.testing.assert_array_equal(found.get_forces(), np.ones((2, 3)))
    read = {key: to_json(value) for key, value in found.info.items()}
    others = found.info.get(OTHER)
    for key, value in info.items():
        is_other = isinstance(others, dict) and str(key) in others and key != OTHER
        text = to_json(others[str(key)]) if is_other else read.get(key)
        if text is None:
            assert key == OTHER or others[OTHER] is not None
            continue
        wanted = to_json(value)
        if text != wanted and key != OTHER:  # arrays of numbers have one type
            assert text == to_json(np.array(json.loads(wanted)))


@settings(deadline=None, max_examples=300)
@given(INFO)
def test_everything_comes_back_from_results(tmp_path_factory, info):
    path = tmp_path_factory.mktemp("xyz") / "a.xyz"
    own = [{"step": 3}, {"error": None}]
    path.write_bytes(extended_xyz([water(info), water(info)], own))
    found = ase.io.read(path, ":", format="extxyz")
    assert len(found) == 2
    for atoms in found:
        assert_kept(atoms, info)
    assert found[0].info["step"] == 3
    assert "error" not in found[1].info


@settings(deadline=None, max_examples=100)
@given(INFO)
def test_everything_comes_back_from_trajectories(tmp_path_factory, info):
    path = tmp_path_factory.mktemp("xyz") / "a.xyz"
    file = ExtendedXYZTrajectory(path, 0)
    for step in (7, 8):
        file.append(Frame.of(water(info), step, 0.1, "nvt 300 K", -1.5, np.ones((2, 3))))
    found = ase.io.read(path, ":", format="extxyz")
    assert [atoms.info["step"] for atoms in found] == [7, 8]
    for atoms in found:
        assert atoms.info["stage"] == "nvt 300 K"
        assert_kept(atoms, info)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_texts_come_back_under_their_own_key(tmp_path, text):
    (tmp_path / "a.xyz").write_bytes(extended_xyz([water({"before": "a", "id": text, "last": 2})]))
    found = ase.io.read(tmp_path / "a.xyz")
    assert found.info == {"before": "a", "id": text, "last": 2}
    assert_kept(found, {})


@pytest.mark.parametrize("key", [*ODD_KEYS, *sorted(RESERVED)])
def test_odd_keys_are_found_under_their_own_name_or_under_other(tmp_path, key):
    (tmp_path / "a.xyz").write_bytes(extended_xyz([water({key: 3, "last": 2})], [{"error": "E"}]))
    info = ase.io.read(tmp_path / "a.xyz").info
    assert (info["error"], info["last"]) == ("E", 2)
    free = {"=", " ", "a b", '"', "\\", OTHER, "step"}
    assert info[key] == 3 if key in free else info[OTHER] == {key: 3}


def test_a_virial_stays_a_matrix(tmp_path):
    virial = np.arange(9.0).reshape(3, 3)
    (tmp_path / "a.xyz").write_bytes(extended_xyz([water({"virial": virial})]))
    np.testing.assert_array_equal(ase.io.read(tmp_path / "a.xyz").info["virial"], virial)


@pytest.mark.parametrize("virial", [[[1], [1, 2]], [[[[1.0]]]], "text", None, 5])
def test_a_virial_that_is_not_a_matrix_is_found_under_other(tmp_path, virial):
    (tmp_path / "a.xyz").write_bytes(extended_xyz([water({"virial": virial})]))
    assert ase.io.read(tmp_path / "a.xyz").info == {OTHER: {"virial": virial}}


def test_results_that_are_computed_again_keep_what_the_first_ones_said(tmp_path):
    path, info = tmp_path / "a.xyz", {"energy": 3, "name": "", "error": "none", "": 1}
    for _ in range(3):
        path.write_bytes(extended_xyz([water(info)], [{"error": None}]))
        found = ase.io.read(path)
        assert found.info == {"name": "", OTHER: {"energy": 3, "error": "none", "": 1}}
        info = found.info


def test_objects_become_text(tmp_path):
    info = {"complex": 1j, "set": {1}, "tuple keys": {(1, 2): 3}, "bytes": b"a"}
    info["itself"] = [info]
    info["spacegroup"] = bulk("Cu").info.get("spacegroup", 5)
    (tmp_path / "a.xyz").write_bytes(extended_xyz([water(info)]))
    found = ase.io.read(tmp_path / "a.xyz").info
    assert (found["complex"], found["set"], found["tuple keys"]) == ("1j", [1], "{(1, 2): 3}")
