"""Whole LAMMPS scripts by ``mlff-triton lammps``, and ranks that fail."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import mlff_triton
from mlff_triton._common.remedies import install
from mlff_triton.calculators.lammps.script import Options, couple_by_words
from mlff_triton.cli.main import main
from mlff_triton.errors import InputError
from tests.calculators.lammps.systems import (
    needs_lammps,
    needs_mpiexec,
    of_engine,
    run_ranks,
    small_model,
    start,
    water,
)

pytestmark = needs_lammps

SCRIPT = """\
variable i loop 2
label again
clear
units metal
region box prism 0 ${a} 0 6.2 0 6.2 0.62 0.31 -0.434
create_box 2 box
include atoms.lammps
mass 1 1.008
mass 2 15.999
if "${i} > 0" then "include model.lammps"
thermo_style custom step pe
thermo_modify format float %.12g
run 0
next i
jump SELF again
fix move all nve
timestep 0.0005
run 2
"""


START = "from mlff_triton.cli.main import main; main()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model, and a script that includes other files in a loop."""
    atoms = water((2, 2, 2), tilt=0.1)
    mlff_triton.save_model(small_model(), tmp_path / "model.safetensors")
    lines = [
        f"create_atoms {1 if symbol == 'H' else 2} single {x} {y} {z}"
        for symbol, (x, y, z) in zip(atoms.symbols, atoms.positions, strict=True)
    ]
    (tmp_path / "atoms.lammps").write_text("\n".join(lines))
    (tmp_path / "model.lammps").write_text("mlff_triton model.safetensors &\n H O skin 0.8\n")
    (tmp_path / "in.lammps").write_text(SCRIPT)
    return tmp_path


NUMERICS = "--device", "cpu", "--dtype", "float64"
OPTIONS = ["lammps", "in.lammps", "--var", "a=6.2", *NUMERICS, "--quiet", "--log", "out.log"]


def run_script(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script on two ranks."""
    return run_ranks(2, ["-c", START, *OPTIONS], folder, timeout=120)


def change(folder: Path, old: str, new: str) -> None:
    script = folder / "in.lammps"
    script.write_text(script.read_text().replace(old, new))


def check_energies(folder: Path) -> None:
    log = (folder / "out.log").read_text()
    energies = re.findall(r"^ +0 +(\S+)", log, re.MULTILINE)
    expected = of_engine(small_model(), water((2, 2, 2), tilt=0.1))["energy"]
    assert len(energies) == 3
    np.testing.assert_allclose(np.array(energies, dtype=float), float(expected), rtol=1e-10)


def test_scripts_run_as_with_a_pair_style(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(OPTIONS)
    assert (ended.value.code, capfd.readouterr().err) == (0, "")
    check_energies(folder)


@needs_mpiexec
def test_scripts_run_on_ranks(folder: Path) -> None:
    """With runs of all kinds, none of which the check for errors may end."""
    runs = "run 3\nminimize 0 1e-3 2 4\nrun 2\nrun 8 upto\nrun 4 every 2 'print X'\n"
    change(folder, "run 2\n", runs + "write_data after.data\n")
    done = run_script(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "after.data").exists()
    check_energies(folder)


BAD_SCRIPTS = {
    "elements in another order": (
        ("include model.lammps", "mlff_triton model.safetensors O H"),
        "type 1 is to be O, but has the mass of H",
    ),
    "an error of LAMMPS": (("fix move all nve", "fox"), "LAMMPS: Unknown command: fox"),
}


@needs_mpiexec
@pytest.mark.parametrize(
    "name",
    [
        # Ranks refuse it as in `test_a_run_before_the_command_is_refused`.
        pytest.param("elements in another order", marks=pytest.mark.slow),
        "an error of LAMMPS",
    ],
)
def test_bad_scripts_end_with_one_line_of_one_rank(folder: Path, name: str) -> None:
    (old, new), text = BAD_SCRIPTS[name]
    change(folder, old, new)
    done = run_script(folder)
    assert done.returncode != 0
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


BAD_WORDS = {
    "": "needs a model and elements: `mlff_triton MODEL ELEMENT...",
    "default": "needs a model and elements",
    "default H O charge one": "charge must be a number, not 'one'",
    "default H O skin 0": "skin=0.0 must be a positive length",
    "default H O skin": "skin needs a value",
    "default H": "2 atom types, but 1 elements",
}


@pytest.mark.parametrize("words", BAD_WORDS)
def test_bad_arguments_of_the_command_are_refused(words: str) -> None:
    with pytest.raises(InputError, match=BAD_WORDS[words]):
        couple_by_words(start(water()), words.split(), Options("cpu"))


def test_a_missing_script_takes_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["lammps", "in.nowhere", "--quiet", "--log", "none"])
    assert ended.value.code == 2
    assert capfd.readouterr().err == (
        "mlff-triton: error: in.nowhere is not a file: give a LAMMPS script\n"
    )


def test_a_script_without_the_model_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "in.lammps"
    script.write_text("units metal\n")
    with pytest.raises(SystemExit):
        main(["lammps", str(script), "--quiet", "--log", "none"])
    assert "replace its pair style by `mlff_triton MODEL ELEMENT..." in capfd.readouterr().err


@pytest.mark.parametrize("module", ["lammps", "mpi4py"])
def test_missing_packages_are_named(module: str, capfd: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict(sys.modules, {module: None}), pytest.raises(SystemExit) as ended:
        main(["lammps", "in.lammps"])
    assert ended.value.code == 2
    error = capfd.readouterr().err
    assert install("lammps") in error
    assert error.count("\n") == 1


def test_variables_need_a_value(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lammps", "in.lammps", "--var", "a"])
    assert "write --var NAME=VALUE" in capfd.readouterr().err


def fail_on_one_rank(folder: Path, when: str) -> subprocess.CompletedProcess[str]:
    """Let the last of two ranks fail, and assert that all end within 30 s."""
    module = ["-m", "tests.calculators.lammps.failing_worker", when]
    done = run_ranks(2, module, folder, timeout=60)
    assert time.time() - (folder / "fails").stat().st_mtime < 30
    assert done.returncode != 0
    return done


@needs_mpiexec
@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("step", "atoms coincide"),
        ("exchange", "rank 1: no memory"),
        ("sum", "rank 1: no memory"),
        ("pass on", "a bug"),
        ("exit", "gone"),
    ],
)
def test_a_failing_rank_ends_all_with_one_message(tmp_path: Path, when: str, message: str) -> None:
    done = fail_on_one_rank(tmp_path, when)
    ours = [line for line in done.stderr.splitlines() if not line.startswith("Abort(")]
    assert ours == [f"mlff-triton: error: {message}"]


@needs_mpiexec
def test_a_killed_rank_ends_all(tmp_path: Path) -> None:
    fail_on_one_rank(tmp_path, "kill")


@pytest.fixture(scope="module")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of errors of ranks that cannot be set up, for several reasons.

    The last of them is not caught.
    """
    folder = tmp_path_factory.mktemp("set-up")
    fail_on_one_rank(folder, "set-up")
    return folder


@needs_mpiexec
@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("dtype", r"the same dtype, but it is torch.float32 on rank 0 and torch.float64 on rank 1"),
        ("model", r"the same model, but it is \w+ on rank 0 and \w+ on rank 1"),
    ],
)
def test_ranks_that_differ_are_refused(set_up: Path, what: str, pattern: str) -> None:
    for rank in range(2):
        assert re.search(pattern, (set_up / f"{what}-{rank}.txt").read_text())


@needs_mpiexec
def test_all_ranks_raise_what_one_cannot_set_up(set_up: Path) -> None:
    for rank in range(2):
        assert (set_up / f"set-up-{rank}.txt").read_text() == "no memory here"
