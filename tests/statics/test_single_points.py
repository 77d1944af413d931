"""Single points of all frames of files."""

from __future__ import annotations

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.constraints import FixAtoms

from mlff_triton import TensorNetCalculator
from mlff_triton.errors import InputError, OverlappingAtomsError, UnknownElementError
from mlff_triton.statics import compute_all, predict_files, read_frames, single_points


@pytest.fixture(scope="module")
def calculator():
    return TensorNetCalculator(device="cpu", dtype="float64")


def test_results_are_those_of_the_calculator(calculator, monkeypatch):
    monkeypatch.setattr(single_points, "IMAGES_PER_CALL", 2)
    images = [molecule(name) for name in ("H2O", "CH4", "NH3")]
    images += [molecule("H2O", cell=[5, 5, 5], pbc=True)]
    images[1].info = {"label": "methane", "charge": 0}
    found = list(compute_all(images, calculator))
    assert len(found) == 4
    for atoms, given in zip(found, images, strict=True):
        given.calc = calculator
        assert atoms.get_potential_energy() == pytest.approx(given.get_potential_energy(), 1e-12)
        np.testing.assert_allclose(atoms.get_forces(), given.get_forces(), atol=1e-10)
        assert atoms.positions is not given.positions
    np.testing.assert_allclose(found[3].get_stress(), images[3].get_stress(), atol=1e-10)
    assert found[1].info == {"label": "methane", "charge": 0}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Atoms("O2", np.zeros((2, 3))), OverlappingAtomsError),
        (Atoms("U"), UnknownElementError),
    ],
)
def test_errors_name_the_structure(calculator, bad, error):
    images = [molecule("H2O"), molecule("CH4"), bad]
    with pytest.raises(error, match=r"^structure 2: "):
        list(compute_all(images, calculator))
    with pytest.raises(error, match=r"^c: "):
        list(compute_all(images, calculator, names=["a", "b", "c"]))


def test_all_frames_are_read(tmp_path):
    frames = [molecule("H2O"), molecule("CH4")]
    frames[0].set_constraint(FixAtoms([0]))
    frames[1].info = {"label": "methane", "charge": 0, "list": [1, 2], 3: np.arange(2)}
    ase.io.write(tmp_path / "frames.traj", frames)
    found = read_frames(tmp_path / "frames.traj")
    assert [len(atoms) for atoms in found] == [3, 5]
    assert not found[0].constraints
    np.testing.assert_array_equal(found[1].positions, frames[1].positions)
    assert found[1].info == {"label": "methane", "charge": 0, "list": [1, 2], "3": [0, 1]}


def test_cells_are_dropped_on_request(tmp_path):
    path = tmp_path / "water.xyz"
    ase.io.write(path, molecule("H2O", cell=[5, 5, 5], pbc=True))
    assert read_frames(path)[0].pbc.all()
    (atoms,) = read_frames(path, periodic=False)
    assert not atoms.pbc.any()
    assert atoms.cell.rank == 0


def test_positions_must_be_finite(tmp_path):
    (tmp_path / "bad.xyz").write_text("1\n\nH 0 0 0\n1\n\nH nan 0 0\n")
    with pytest.raises(InputError, match=r"bad.xyz, frame 1: the position of atom 0 is NaN"):
        read_frames(tmp_path / "bad.xyz")


def test_isotopes_are_kept(tmp_path):
    light, heavy = molecule("H2O"), molecule("H2O")
    heavy.set_masses([15.999, 2.014, 2.014])
    source, out = tmp_path / "water.xyz", tmp_path / "out.xyz"
    ase.io.write(source, [light, heavy])
    read = read_frames(source)
    predict_files(source, out, device="cpu")
    for first, second in (read, ase.io.read(out, ":")):
        assert not first.has("masses")
        np.testing.assert_allclose(second.get_masses(), heavy.get_masses())
