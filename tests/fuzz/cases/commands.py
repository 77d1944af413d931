"""Command lines with options and values that nobody means."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import typer
from ase.build import molecule

from mlff_triton.cli.app import app
from mlff_triton.cli.main import main
from tests.fuzz.damage import choice, make_special
from tests.fuzz.kind import Facts, Finding, Kind, Refusal
from tests.fuzz.verdict import problem_of
from tests.support.checkpoints import save_tiny_model

MODEL = "tiny.safetensors"
USUAL: dict[str, tuple[str, ...]] = {  # arguments that succeed, quickly
    "md": ("water.xyz", "--model", MODEL, "--steps", "2", "--device", "cpu", "--out", "new"),
    "energy": ("water.xyz", "--model", MODEL, "--device", "cpu"),
    "predict": ("water.xyz", "--model", MODEL, "--device", "cpu", "--out", "new.xyz"),
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
}
FILES = (
    *("water.xyz", MODEL, "queries.fa", "targets.fa", "empty", "folder", "folder/new", "noise"),
    *("missing", "fifo", "loop", "/dev/null", "/proc/self/mem", "~nosuchuser/x", "a" * 300, "."),
)
WORDS = (
    *("auto", "cpu", "cuda", "cuda:99", "mps", "float32", "float64", "float16", "nve", "nvt"),
    *("npt", "local", "all", "zip", "BLOSUM62", "Hartree", "langevin", "rescaling", "dcd", "xtc"),
    *("true", "N", "X", "", " ", "-", "--", "--help", "\x1b[31m", "é", "\udc80", "a,b", "nan"),
)
NUMBERS = ("0", "1", "-1", "2", "3", "0.5", "1e-300", "1e300", "inf", "300:400", "1:2:3", "9" * 30)
LARGE = ("2147483648", "9223372036854775808")
FEW = ("--steps", "2")  # for commands that have lost theirs: the usual numbers take half a minute
UNBOUNDED = ("--steps", "--extend", "--threads")  # their large values are fine, and take forever


def commands() -> dict[str, Any]:
    """Return all commands by name."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def prepare(rng: np.random.Generator, folder: Path) -> None:
    """Write the files that command lines name."""
    save_tiny_model(folder)
    ase.io.write(folder / "water.xyz", molecule("H2O"), format="extxyz")
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


def check(folder: Path, facts: Facts) -> None:
    """Run the command line, and check its exit code and all that it prints."""
    make_special("fifo", folder / "fifo")
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
    is_line = complaint.startswith("mlff-triton: error: ") and complaint.count("\n") == 1
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


KIND = Kind({"usual": usual, "command line": command_line, "words only": words_only}, check)
