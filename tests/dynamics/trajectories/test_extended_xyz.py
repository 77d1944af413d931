"""Extended XYZ, byte by byte as ASE writes it."""

from __future__ import annotations

import io

import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from mlff_triton.dynamics.trajectories import Frame
from tests.dynamics.trajectories.frames import CELLS, frame, frame_of, opened, random_atoms


def written(path, *frames):
    file = opened(path)
    for each in frames:
        file.append(each)
    return path.read_text()


def text_of_ase(atoms, step, time_ps, stage, columns=(), forces=None):
    snapshot = atoms.copy()
    snapshot.info |= {"step": step, "time_ps": time_ps, "stage": stage}
    snapshot.calc = SinglePointCalculator(
        snapshot,
        energy=atoms.get_potential_energy(),
        forces=atoms.get_forces() if forces is None else forces,
    )
    text = io.StringIO()
    names = ["symbols", "positions", "momenta", "forces", *columns]
    ase.io.write(text, snapshot, format="extxyz", columns=names)
    return text.getvalue()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("count", [1, 20])
def test_bytes_are_those_of_ase(tmp_path, cell, count):
    atoms = random_atoms(count, cell=cell)
    text = written(tmp_path / "t.xyz", frame_of(atoms, 7, 0.0035, "nvt 300 K"))
    assert text == text_of_ase(atoms, 7, 0.0035, "nvt 300 K")


def test_custom_masses_are_a_column(tmp_path):
    atoms = random_atoms()
    atoms.set_masses(np.linspace(1, 300, len(atoms)))
    text = written(tmp_path / "t.extxyz", frame_of(atoms, 7, 0.0035, "nve"))
    assert text == text_of_ase(atoms, 7, 0.0035, "nve", ["masses"])


def test_fixed_atoms_are_a_column(tmp_path):
    """Forces are the model's own, which ASE's ``get_forces`` hides for fixed atoms."""
    frames, texts = [], []
    for fixed in ([0, 3], [0, 3], [1]):
        atoms = random_atoms(cell="slab")
        forces = atoms.get_forces()
        atoms.set_array("residuenumbers", np.arange(20))
        atoms.set_constraint(FixAtoms(fixed))
        frames.append(Frame.of(atoms, 7, 0.0035, "nve", atoms.get_potential_energy(), forces))
        texts.append(text_of_ase(atoms, 7, 0.0035, "nve", ["residuenumbers", "move_mask"], forces))
    assert written(tmp_path / "t.xyz", *frames) == "".join(texts)
    read = ase.io.read(tmp_path / "t.xyz", ":")
    assert [atoms.constraints[0].index.tolist() for atoms in read] == [[0, 3], [0, 3], [1]]
    np.testing.assert_allclose(read[0].get_forces(apply_constraint=False), forces, atol=1e-8)


def test_names_of_atoms_and_residues_are_columns(tmp_path):
    atoms = random_atoms()
    atoms.set_masses(np.linspace(1, 300, len(atoms)))
    atoms.set_array("atomtypes", np.array([f"{symbol}1" for symbol in atoms.symbols]))
    atoms.set_array("residuenumbers", np.arange(20) // 3)
    frames = [frame_of(atoms, 7, 0.0035, "nve")]
    atoms.set_array("residuenumbers", None)
    atoms.set_array("residuenames", np.array(["HOH", "X"] * 10))
    frames.append(frame_of(atoms, 8, 0.004, "nve"))
    text = written(tmp_path / "t.xyz", *frames)
    new = text_of_ase(atoms, 8, 0.004, "nve", ["masses", "atomtypes", "residuenames"])
    atoms.set_array("residuenumbers", np.arange(20) // 3)
    old = text_of_ase(atoms, 7, 0.0035, "nve", ["masses", "atomtypes", "residuenumbers"])
    assert text == old + new


def test_labels_that_are_not_one_word_keep_their_columns(tmp_path):
    """As of blank residue names in a PDB file."""
    atoms = random_atoms(3)
    atoms.set_array("residuenames", np.array(["", "A B", "HOH "]))
    written(tmp_path / "t.xyz", frame_of(atoms, 7, 0.0035, "nve"))
    found = ase.io.read(tmp_path / "t.xyz")
    assert found.arrays["residuenames"].tolist() == ["_", "A_B", "HOH"]


@pytest.mark.parametrize("value", [1e4, -123456.78912345678, 1e7, np.nan, -np.inf])
def test_numbers_of_any_size(tmp_path, value):
    atoms = random_atoms()
    momenta = atoms.get_momenta()
    momenta[3, 1] = value
    atoms.set_momenta(momenta)
    text = written(tmp_path / "t.xyz", frame_of(atoms, 7, 0.0035, "nve"))
    assert text == text_of_ase(atoms, 7, 0.0035, "nve")


def test_ase_reads_all_frames(tmp_path):
    frames = [frame(index) for index in range(3)]
    written(tmp_path / "t.xyz", *frames)
    read = ase.io.read(tmp_path / "t.xyz", ":")
    assert len(read) == 3
    for atoms, each in zip(read, frames, strict=True):
        np.testing.assert_array_equal(atoms.numbers, each.numbers)
        np.testing.assert_array_equal(atoms.cell.array, each.cell)
        for array, expected in [
            (atoms.positions, each.positions),
            (atoms.get_momenta(), each.momenta),
            (atoms.get_forces(), each.forces),
        ]:
            np.testing.assert_allclose(array, expected, rtol=0, atol=0.51e-8)
        assert atoms.get_potential_energy() == each.energy
        info = {"charge": 1, "step": each.step, "time_ps": each.time_ps, "stage": "nvt"}
        assert atoms.info == info
