"""Command lines with options and values that nobody means."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import typer
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from mlff_triton.cli.app import app
from mlff_triton.cli.main import main
from mlff_triton.dynamics import load_restart
from tests.fuzz.damage import choice, make_special
from tests.fuzz.kind import Facts, Finding, Kind, Refusal
from tests.fuzz.verdict import problem_of
from tests.support.checkpoints import save_tiny_model

MODEL = "tiny.safetensors"
TINY = ("--channels", "8", "--layers", "1", "--rbf", "4")
USUAL: dict[str, tuple[str, ...]] = {  # arguments that succeed, quickly
    "md": ("water.xyz", "--model", MODEL, "--steps", "2", "--device", "cpu", "--out", "new"),
    "energy": ("water.xyz", "--model", MODEL, "--device", "cpu"),
    "predict": ("water.xyz", "--model", MODEL, "--device", "cpu", "--out", "new.xyz"),
    "train": ("labeled.xyz", *TINY, "--epochs", "1", "--device", "cpu", "--out", "new"),
    "relax": ("water.xyz", "--model", MODEL, "--steps", "3", "--device", "cpu"),
    "vibrations": ("water.xyz", "--model", MODEL, "--device", "cpu"),
    "info": (MODEL,),
    "explain": (MODEL, "--device", "cpu"),
    "convert": (MODEL, "new.safetensors"),
    "models": (),
    "align": ("queries.fa", "targets.fa", "--out", "new.tsv", "--device", "cpu"),
}
SLOW = {  # refused at last
    "calibrate": ("--dtype", "float8"),
    "bench": ("--no-such-option",),
    "embed": ("queries.fa", "--model", "folder", "--out", "new.csv"),
    "lammps": ("--var", "without a value"),
    "dock": ("water.xyz", "queries.fa", "--model", "folder"),
}
FILES = (
    *(
        "water.xyz",
        "labeled.xyz",
        MODEL,
        "queries.fa",
        "targets.fa",
        "empty",
        "folder",
        "folder/new",
        "noise",
    ),
    *("missing", "fifo", "loop", "/dev/null", "/proc/self/mem", "~nosuchuser/x", "a" * 300, "."),
)
WORDS = (
    *("auto", "cpu", "cuda", "cuda:99", "mps", "float32", "float64", "float16", "nve", "nvt"),
    *("cpu,cpu", "cpu,", "cuda:0,cuda:0", "auto,cpu"),
    *("npt", "local", "all", "zip", "BLOSUM62", "Hartree", "langevin", "rescaling", "dcd", "xtc"),
    *("d3bj:pbe", "d3bj:", "d4:pbe"),
    *("pme", "all-pairs", "reaction-field"),
    *("true", "N", "X", "", " ", "-", "--", "--help", "\x1b[31m", "é", "\udc80", "a,b", "nan"),
)
NUMBERS = ("0", "1", "-1", "2", "3", "0.5", "1e-300", "1e300", "inf", "300:400", "1:2:3", "9" * 30)
POSITIVE = ("1e-300", "1e-9", "0.001", "0.5", "1", "50", "1e9", "1e300")
SIMULATION: dict[str, tuple[str, ...]] = {  # options of simulations, and values that may be meant
    "--timestep": POSITIVE,
    "--temperature": (*POSITIVE, "300"),
    "--heat-from": (*POSITIVE, "300"),
    "--friction": POSITIVE,
    "--thermostat": ("langevin", "rescaling"),
    "--pressure": ("0", "1", "-1", "1e4", "-1e4", "1e9", "-1e9", "1e300", "nan"),
    "--barostat": ("isotropic", "anisotropic"),
    "--barostat-time": (*POSITIVE, "1000"),
    "--compressibility": (*POSITIVE, "4.5e-7", "4.5e-5", "inf"),
    "--fix": ("none", "O", "0-1", "1", "H & z<4", "0-2", "z>1e3", "Cu"),
    "--hydrogen-mass": ("1", "2", "3", "9"),
    "--every": ("1", "2", "5"),
    "--log-every": ("1", "2"),
    "--seed": ("1", "9223372036854775807"),
    "--replicas": ("1", "2"),
    "--device": ("cpu", "cpu,cpu"),
    "--exchange-every": ("0", "1", "2"),
    "--trajectory": ("xyz", "dcd", "xtc"),
    "--dispersion": ("d3bj:pbe", "D3BJ:R2SCAN", "d3bj:none"),
    "--stop-at-uncertainty": ("0.3", "1e-9", "0", "nan"),
    "--minimize": (),
    "--keep-velocities": (),
}
NPT_ONLY = ("--pressure", "--barostat", "--barostat-time", "--compressibility")
FURTHER = ("--pressure", "--temperature", "--trajectory")  # of runs that go on
LARGE = ("2147483648", "9223372036854775808")
FEW = ("--steps", "2")  # for commands that have lost theirs: the usual numbers take half a minute
UNBOUNDED = (
    "--steps",
    "--extend",
    "--threads",
    "--epochs",
)  # their large values are fine, and take forever


def commands() -> dict[str, Any]:
    """Return all commands by name."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def prepare(rng: np.random.Generator, folder: Path) -> None:
    """Write the files that command lines name."""
    save_tiny_model(folder)
    ase.io.write(folder / "water.xyz", molecule("H2O"), format="extxyz")
    box = molecule("H2O", cell=[6, 7, 8], pbc=True)
    box.set_momenta(0.1 * box.positions)
    ase.io.write(folder / "box.xyz", box, format="extxyz")
    frames = [molecule("H2O") for _ in range(4)]
    for frame in frames:
        frame.rattle(0.05, rng=rng)
        forces = rng.normal(size=(3, 3))
        frame.calc = SinglePointCalculator(frame, energy=rng.normal(), forces=forces)
    ase.io.write(folder / "labeled.xyz", frames, format="extxyz")
    (folder / "queries.fa").write_text(">a\nACGTTA\n>b\nGG\n")
    (folder / "targets.fa").write_text(">c\nACTTA\n>d\nGGC\n")
    (folder / "noise").write_bytes(rng.bytes(1000))
    for kind, name in (("empty", "empty"), ("directory", "folder"), ("loop", "loop")):
        make_special(kind, folder / name)


def value_for(rng: np.random.Generator, option: str) -> str:
    """Draw a value of an option or an argument."""
    pools = [FILES, WORDS, NUMBERS]
    if option not in UNBOUNDED:
        pools.append(LARGE)
    return str(choice(rng, choice(rng, pools)))


def command_line(rng: np.random.Generator, folder: Path) -> Facts:
    """Draw a command, and change some of the arguments with which it would succeed."""
    prepare(rng, folder)
    known = commands()
    name = choice(rng, known)
    arguments = list(USUAL.get(name, ()))
    options = [max(p.opts, key=len) for p in known[name].params if p.opts[0].startswith("-")]
    for _ in range(rng.geometric(0.5)):
        action = rng.integers(4)
        if action == 0 and arguments:
            k = int(rng.integers(len(arguments)))
            before = arguments[k - 1] if k else ""
            arguments[k] = value_for(rng, before)
        elif action == 1 and arguments:
            del arguments[int(rng.integers(len(arguments)))]
        elif options:
            option = choice(rng, options)
            parameter = next(p for p in known[name].params if option in p.opts)
            is_flag = getattr(parameter, "is_flag", False)
            arguments += [option] if is_flag else [option, value_for(rng, option)]
    if "--steps" in options and "--steps" not in arguments:
        arguments += FEW
    return {"arguments": [name, *arguments, *SLOW.get(name, ())]}


def usual(rng: np.random.Generator, folder: Path) -> Facts:
    """Draw a command with the arguments with which it succeeds."""
    prepare(rng, folder)
    name = choice(rng, USUAL)
    return {"arguments": [name, *USUAL[name]], "succeeds": True}


def words_only(rng: np.random.Generator, folder: Path) -> Facts:
    """Draw words in any order."""
    prepare(rng, folder)
    options = ("--version", "--help", "-h", "--model", "--out", "--no-such", *commands())
    count = int(rng.integers(0, 4))
    words = [choice(rng, choice(rng, (options, FILES, WORDS, NUMBERS))) for _ in range(count)]
    return {"arguments": [word for word in words if word not in SLOW]}


def simulation(rng: np.random.Generator, folder: Path) -> Facts:
    """Draw a simulation under any conditions, which may go on once or twice."""
    prepare(rng, folder)

    def stages() -> list[str]:
        drawn = [choice(rng, ("nve", "nvt", "npt", "npt")) for _ in range(rng.integers(1, 3))]
        return [word for one in drawn for word in ("--ensemble", one)]

    def drawn(names: Iterable[str], share: float) -> list[str]:
        words = []
        for name in names:
            if rng.random() < share:
                words += [name, choice(rng, SIMULATION[name])] if SIMULATION[name] else [name]
        return words

    usual = ("--model", MODEL, "--device", "cpu", "--out", "new", "--steps", "6")
    first = stages()
    with_cell = "npt" in first or rng.random() < 0.2
    options = [name for name in SIMULATION if "npt" in first or name not in NPT_ONLY]
    arguments = ["md", "box.xyz" if with_cell else "water.xyz", *usual, *first]
    arguments += drawn(options, 0.15) + ["--reactive"] * int(rng.integers(2))
    further = []
    for _ in range(rng.integers(3)):
        more = [*stages(), "--steps", "3"] if rng.random() < 0.5 else ["--extend", "2"]
        further.append(["md", "--restart", "new/restart.npz", *more, *drawn(FURTHER, 0.2)])
    return {"arguments": arguments, "further": further, "is_simulation": True}


def check(folder: Path, facts: Facts) -> None:
    """Run command lines, and check exit codes and all that they print."""
    make_special("fifo", folder / "fifo")
    try:
        for arguments in (facts["arguments"], *facts.get("further", ())):
            check_line({**facts, "arguments": arguments})
    finally:
        if facts.get("is_simulation") and (folder / "new").exists():
            check_records(folder / "new")


def check_records(folder: Path) -> None:
    """Raise `Finding` unless the records of a simulation are complete, whatever ended it."""
    snapshot = load_restart(folder / "restart.npz")
    if not np.isfinite(snapshot.state.positions).all():
        raise Finding("the restart file has positions that are not finite")
    for path in sorted(folder.glob("log*.csv")):
        header, *lines = path.read_text().splitlines()
        rows = [line.split(",") for line in lines]
        if any(len(row) != header.count(",") + 1 for row in rows):
            raise Finding(f"{path.name} has an incomplete row")
        steps = [int(row[0]) for row in rows]
        if steps != sorted(set(steps)):
            raise Finding(f"{path.name} has its rows twice, or not in order: {steps}")
        numbers = [float(cell) for row in rows for cell in (row[1], *row[3:]) if cell]
        if not np.isfinite(numbers).all():
            raise Finding(f"{path.name} has numbers that are not finite")


def check_line(facts: Facts) -> None:
    """Run a command line, and check its exit code and all that it prints."""
    code = run(facts["arguments"])
    printed, complaint = (
        Path(name).read_text(encoding="utf-8", errors="backslashreplace")
        for name in ("stdout", "stderr")
    )
    for text in (printed, complaint):
        problem = problem_of(text, most_lines=1000)
        if problem:
            raise Finding(f"{problem}: {text[:300]!r}")
    if code not in (0, 1, 2):
        raise Finding(f"exit code {code}: {complaint[:300]!r}")
    *warnings, last = complaint.splitlines() or [""]
    is_line = last.startswith("mlff-triton: error: ") and complaint.endswith("\n")
    is_line &= all(line.startswith("mlff-triton: warning: ") for line in warnings)
    if code == 2 and not is_line and facts["arguments"][:1] != ["bench"]:
        raise Finding(f"not one line: {complaint[:300]!r}")
    if code == 2 and facts.get("succeeds"):
        raise Finding(f"usual arguments are refused: {complaint[:300]!r}")
    if code:
        raise Refusal(complaint)


def run(arguments: list[str]) -> int:
    """Run a command line in this process, and return its exit code."""
    with contextlib.ExitStack() as stack:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            file = stack.enter_context(Path(name).open("wb"))
            os.dup2(file.fileno(), descriptor)
        try:
            main(arguments)
        except SystemExit as exit_:
            return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    raise Finding("the command line returned without an exit code")


KIND = Kind(
    {
        "usual": usual,
        "command line": command_line,
        "words only": words_only,
        "simulation": simulation,
    },
    check,
)
