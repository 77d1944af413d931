"""Checks before a run, and the optional dependency."""

from __future__ import annotations

import re
import sys

import pytest

from mlff_triton._common.remedies import install
from mlff_triton.dynamics.trajectories import check_trajectory
from mlff_triton.errors import InputError
from tests.dynamics.trajectories.frames import SUFFIXES, opened, random_atoms


@pytest.mark.parametrize("name", ["t.xyz", "t.extxyz", "t.DCD", "t.xtc"])
@pytest.mark.parametrize("cell", ["orthorhombic", "triclinic", "slab", "none"])
def test_suitable_structures_pass(tmp_path, name, cell):
    check_trajectory(tmp_path / name, random_atoms(cell=cell))
    assert not list(tmp_path.iterdir())


def test_rotated_cells_need_text(tmp_path):
    atoms = random_atoms()
    atoms.rotate(30, "z", rotate_cell=True)
    check_trajectory(tmp_path / "t.xyz", atoms)
    for name in ("t.dcd", "t.xtc"):
        with pytest.raises(InputError, match="rotate the structure"):
            check_trajectory(tmp_path / name, atoms)


def test_unknown_suffixes_are_refused():
    with pytest.raises(InputError, match=r"unknown trajectory format 't\.nc'"):
        check_trajectory("t.nc", random_atoms())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_binary_formats_need_the_library(tmp_path, monkeypatch, suffix):
    monkeypatch.setitem(sys.modules, "MDAnalysis.lib.formats", None)
    path = tmp_path / f"t{suffix}"
    if suffix == ".xyz":
        check_trajectory(path, random_atoms())
        opened(path)
        return
    message = re.escape(install("trajectories"))
    with pytest.raises(InputError, match=message):
        check_trajectory(path, random_atoms())
    with pytest.raises(InputError, match=message):
        opened(path)
