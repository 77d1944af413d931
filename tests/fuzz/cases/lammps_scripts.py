"""LAMMPS scripts of files, loops and conditions, with an error of the model at a random place."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from ase.build import molecule

from tests.fuzz.damage import choice
from tests.fuzz.kind import Facts, Finding, Kind, Refusal
from tests.fuzz.verdict import problem_of
from tests.support.checkpoints import save_tiny_model

START = "from mlff_triton.cli.main import main; main()"
HEAD = """\
units metal
region box block 0 9 0 9 0 9
create_box 2 box
{atoms}
mlff_triton tiny.safetensors H O
fix move all nve
timestep 0.0005
thermo_modify lost ignore
"""
AGAIN = "clear\ninclude start.lammps"
"""The same system from the beginning."""
ERRORS = (
    "set atom 1 x 1 y 1 z 1\nset atom 2 x 1 y 1 z 1\n{run}",
    "timestep 0.5\n{run}",
    "run_style respa 2 2\n{run}",
    "unfix mlff_triton\n{run}",
    "change_box all x final 0 0.5 y final 0 0.5 z final 0 0.5 remap units box\n{run}",
    "include nowhere.lammps",
    "jump nowhere.lammps",
    "nonsense",
    AGAIN + "\n{meet}\nrun 4",
)
KINDS = ("mark", "run", "if", "unless", "error", "include", "loop", "clear")
RUNS = ("run 0", "run 2", "minimize 0 1e-3 2 4", "run 4 every 2 NULL")


@dataclass
class Script:
    """A script that is drawn command by command, with errors or without."""

    rng: np.random.Generator
    folder: Path
    fails: bool
    meet: str
    numbers: Any = field(default_factory=count)

    def block(self, depth: int) -> tuple[str, list[int | None]]:
        """Return commands for a file, and what they print; None is the error."""
        lines: list[str] = []
        events: list[int | None] = []
        for _ in range(int(self.rng.integers(1, 4))):
            text, found = self.command(depth)
            lines.append(text)
            events += found
        return "\n".join(lines), events

    def command(self, depth: int) -> tuple[str, list[int | None]]:
        """Return one command, which may hold others, and what it prints."""
        kind = choice(self.rng, KINDS)
        number = next(self.numbers)
        mark = f'print "{number}" append marks screen no'
        run = choice(self.rng, RUNS)
        if kind == "error" and self.fails:
            error = choice(self.rng, ERRORS).format(run=run, meet=self.meet)
            return f"{error}\n{mark}", [None, number]
        if kind == "clear":
            return f"{AGAIN}\n{mark}", [number]
        if kind == "if":
            return f"if '1 > 0' then '{run}' \"print {number} append marks screen no\"", [number]
        if kind == "unless":
            return f"if '1 < 0' then '{mark}' else '{run}'", []
        if kind in ("include", "loop") and depth:
            file = f"part{number}.lammps"
            text, events = self.block(depth - 1)
            if kind == "include":
                (self.folder / file).write_text(text + "\n")
                return f"include {file}\n{mark}", [*events, number]
            times = int(self.rng.integers(1, 4))
            loop = f"variable i{number} loop {times}\nlabel l{number}\n{text}\n"
            (self.folder / file).write_text(loop + f"next i{number}\njump SELF l{number}\n")
            return f"include {file}\n{mark}", [*events * times, number]
        return (run, []) if kind == "run" else (mark, [number])


def meeting(a: np.ndarray, b: np.ndarray) -> str:
    """Return commands with which a bond of atoms 1 and 2 is a fourth of its length in 4 steps.

    The masses are large, so that forces do not matter.
    """
    velocity = 0.375 * (b - a) / 0.002
    pairs = (1, velocity), (2, -velocity)
    lines = [f"set atom {k} vx {v[0]} vy {v[1]} vz {v[2]}" for k, v in pairs]
    return "\n".join(["mass * 1e6", *lines])


def script(rng: np.random.Generator, folder: Path, *, fails: bool) -> Facts:
    """Draw a script, and write its files."""
    save_tiny_model(folder)
    water = molecule("H2O")
    water.positions += 4
    atoms = "\n".join(
        f"create_atoms {1 if symbol == 'H' else 2} single {x} {y} {z}"
        for symbol, (x, y, z) in zip(water.symbols, water.positions, strict=True)
    )
    drawn = Script(rng, folder, fails, meeting(water.positions[0], water.positions[1]))
    text, events = drawn.block(3)
    (folder / "start.lammps").write_text(HEAD.format(atoms=atoms))
    (folder / "in.lammps").write_text(f"include start.lammps\n{text}\n")
    if None not in events:
        return {"marks": events, "code": 0}
    return {"marks": events[: events.index(None)], "code": 2}


def good(rng: np.random.Generator, folder: Path) -> Facts:
    """Draw a script without errors."""
    return script(rng, folder, fails=False)


def failing(rng: np.random.Generator, folder: Path) -> Facts:
    """Draw a script that may have errors."""
    return script(rng, folder, fails=True)


def check(folder: Path, facts: Facts) -> None:
    """Run the script, whose exit code and marks tell how far it came."""
    command = [sys.executable, "-c", START, "lammps", "in.lammps", "--device", "cpu", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    marks = folder / "marks"
    found = [int(line) for line in marks.read_text().split()] if marks.exists() else []
    if done.returncode != facts["code"]:
        raise Finding(f"exit code {done.returncode}, not {facts['code']}: {done.stderr[:300]!r}")
    if found != facts["marks"]:
        raise Finding(f"{found} ran, and {facts['marks']} should have")
    lines = [line for line in done.stderr.splitlines() if "warning: " not in line]
    if len(lines) != (done.returncode != 0) or problem_of("\n".join(lines)):
        raise Finding(f"not one line: {done.stderr[:300]!r}")
    if done.returncode:
        raise Refusal(lines[0])


KIND = Kind({"good": good, "failing": failing}, check)
