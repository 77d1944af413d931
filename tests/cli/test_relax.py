"""``mlff-triton relax``: its files, exit codes and refusals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from matplotlib.figure import Figure

from mlff_triton.dynamics.lock import DirectoryLock
from mlff_triton.errors import OutputError
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.statics import RelaxationStep, relaxation_files
from tests.support.figures import assert_nothing_is_clipped

FILES = {"trajectory.xyz", "final.xyz", "summary.png"}


@pytest.fixture
def relax(run):
    ase.io.write("water.xyz", molecule("H2O"))

    def command(*arguments):
        return run("relax", *arguments, "--device", "cpu")

    return command


def test_files_of_a_relaxation(relax):
    code, out, err = relax("water.xyz", "--charge", 0)
    assert (code, err) == (0, "")
    assert {path.name for path in Path("relax").iterdir()} == FILES
    frames = ase.io.read("relax/trajectory.xyz", ":")
    final = ase.io.read("relax/final.xyz")
    assert [atoms.info["step"] for atoms in frames] == list(range(len(frames)))
    np.testing.assert_array_equal(final.positions, frames[-1].positions)
    assert final.get_potential_energy() == frames[-1].get_potential_energy()
    assert frames[-1].get_potential_energy() < frames[0].get_potential_energy()
    assert np.linalg.norm(final.get_forces(), axis=1).max() < 0.01
    assert final.info["charge"] == 0
    assert f"{final.get_potential_energy():.6f} eV" in out
    assert Path("relax/summary.png").read_bytes().startswith(b"\x89PNG")


def test_names_and_masses_are_kept(relax):
    atoms = molecule("H2O")
    atoms.set_masses([15.999, 2.014, 1.008])
    atoms.set_array("residuenames", np.array(["HOH"] * 3))
    ase.io.write("heavy.xyz", atoms)
    relax("heavy.xyz", "--steps", 1)
    final = ase.io.read("relax/final.xyz")
    assert final.get_masses()[1] == 2.014
    assert final.arrays["residuenames"].tolist() == ["HOH"] * 3


def test_a_relaxation_that_does_not_converge(relax):
    code, out, err = relax("water.xyz", "--steps", 1, "--out", "short")
    assert code == 1
    assert "1, not converged" in out
    assert err.startswith("mlff-triton: not converged: the largest force is ")
    assert err.count("\n") == 1
    assert "short/final.xyz" in err
    assert relax("short/final.xyz", "--out", "rest")[0] == 0


def test_a_cell_is_relaxed(relax):
    ase.io.write("ice.xyz", molecule("H2O", cell=[4, 4, 4], pbc=True))
    with pytest.warns(UnknownChemistryWarning, match="densities"):
        out = relax("ice.xyz", "--cell", "--steps", 3)[1]
    cells = [atoms.cell.array for atoms in ase.io.read("relax/trajectory.xyz", ":")]
    assert not np.allclose(cells[0], cells[-1])
    assert "stress" in out
    code, _, err = relax("water.xyz", "--cell", "--out", "molecule")
    assert (code, err.count("\n")) == (2, 1)
    assert "not periodic" in err
    assert not Path("molecule").exists()


def test_results_are_not_overwritten_unasked(relax):
    Path("relax").mkdir()
    Path("relax/trajectory.xyz").write_text("old")
    Path("relax/notes.txt").write_text("mine")
    code, out, err = relax("water.xyz")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "relax is not empty" in err
    assert Path("relax/trajectory.xyz").read_text() == "old"
    assert relax("water.xyz", "--overwrite", "--model", "absent")[0] == 2
    assert Path("relax/trajectory.xyz").read_text() == "old"
    assert relax("water.xyz", "--overwrite")[0] == 0
    assert {path.name for path in Path("relax").iterdir()} == {*FILES, "notes.txt"}
    assert len(ase.io.read("relax/trajectory.xyz", ":")) > 2


def test_the_directory_of_another_run_is_refused_until_that_ends(relax):
    Path("relax").mkdir()
    Path("relax/trajectory.xyz").write_text("of the other")
    with DirectoryLock(Path("relax")):
        code, _, err = relax("water.xyz", "--overwrite")
        assert (code, err.count("\n")) == (2, 1)
        assert "is computing in relax: wait for its end" in err
        assert Path("relax/trajectory.xyz").read_text() == "of the other"
    assert relax("water.xyz", "--overwrite")[0] == 0


def test_a_directory_that_another_run_fills_in_the_meantime_is_refused(tmp_path):
    (tmp_path / "final.xyz").write_text("of the other")
    with pytest.raises(OutputError, match="is not empty"):
        relaxation_files.RelaxationFiles(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["final.xyz"]


def test_ctrl_c_keeps_the_steps_so_far(relax, monkeypatch):
    add = relaxation_files.RelaxationFiles.add

    def interrupt(files, atoms, step):
        add(files, atoms, step)
        if step.number == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(relaxation_files.RelaxationFiles, "add", interrupt)
    code, _, err = relax("water.xyz")
    assert code == 130
    assert err == "mlff-triton: stopped at step 1: continue from relax/final.xyz\n"
    assert len(ase.io.read("relax/trajectory.xyz", ":")) == 2


def test_a_file_in_place_of_the_directory_is_refused(relax):
    code, _, err = relax("water.xyz", "--out", "water.xyz")
    assert (code, err.count("\n")) == (2, 1)
    assert "water.xyz is a file" in err


@pytest.mark.parametrize("n_steps", [0, 1, 30])
def test_nothing_of_the_figure_is_clipped(monkeypatch, n_steps):
    history = [RelaxationStep(k, -1e-5 * k, 10.0 ** (-k / 5), False) for k in range(n_steps + 1)]
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    relaxation_files._figure(history, 9, 0.01)
    assert_nothing_is_clipped(figures[0])
    for axes in figures[0].axes:
        assert (axes.lines[0].get_marker() == ".") == (n_steps == 0)
    assert all(float(tick).is_integer() for tick in figures[0].axes[1].get_xticks())
