"""Constraints of structures and selections of atoms, in every calculation that moves atoms.

Whatever is drawn, atoms that are fixed stay to the last bit, and everything else is refused before
anything has moved.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.constraints import (
    FixAtoms,
    FixBondLength,
    FixCartesian,
    FixCom,
    FixedLine,
    FixedPlane,
    FixInternals,
    FixScaled,
    Hookean,
    dict2constraint,
)
from ase.io.jsonio import decode, encode

from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.cli.main import main as command_line
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.selection import select_atoms
from mlff_triton.errors import InputError
from mlff_triton.statics import find_vibrations, relax
from tests.fuzz.damage import choice
from tests.fuzz.kind import Facts, Finding, Kind, Refusal
from tests.fuzz.verdict import problem_of
from tests.support.springs import Springs

NAMES = ("CH3CH2OH", "H2O", "CH4", "C6H6")
CALCULATIONS = ("md", "relax", "vibrations")
CONDITIONS = ("0", "0-1", "2", "C", "O", "H", "z<4.1", "x>=4.0", "y <= 4.5", "z>1e3", "1-0", "99")
PIECES = (*"0123456789-,&<>=xyz. e+#\n", "z<", "x>=", "C", "H", "O", "Cu", "0-2", "none", "é")


class Many(Springs):
    """Springs that compute batches, as vibrations need."""

    def calculate_many(self, images: list[Atoms]) -> list[dict[str, object]]:
        results = []
        for atoms in images:
            self.calculate(atoms)
            results.append(self.results)
        return results


def drawn_structure(rng: np.random.Generator) -> Atoms:
    atoms = molecule(choice(rng, NAMES), vacuum=4.0)
    atoms.pbc = rng.random() < 0.5
    atoms.rattle(0.02, rng=rng)
    return atoms


def write(atoms: Atoms, folder: Path, rng: np.random.Generator) -> Facts:
    constraints = [constraint.todict() for constraint in atoms.constraints]
    bare = atoms.copy()
    bare.set_constraint()
    ase.io.write(folder / "structure.xyz", bare)
    (folder / "constraints.txt").write_text(encode(constraints))
    return {
        "calculation": choice(rng, CALCULATIONS),
        "thermostat": choice(rng, ("langevin", "rescaling")),
        "ensemble": choice(rng, ("nvt", "nve", "nvt", "npt")),
        "minimize": bool(rng.random() < 0.3),
        "n_replicas": int(rng.integers(1, 3)),
    }


def fixed(rng: np.random.Generator, folder: Path) -> Facts:
    """Fix atoms by indices, which may be negative, none, all or too large."""
    atoms = drawn_structure(rng)
    n_atoms = len(atoms)
    count = int(rng.integers(0, n_atoms + 2))
    widest = n_atoms + 1 if rng.random() < 0.1 else n_atoms
    kinds = [
        FixAtoms(np.unique(rng.integers(-n_atoms, widest, count)).tolist()),
        FixAtoms(mask=rng.random(n_atoms) < rng.random()),
        FixCartesian(np.unique(rng.integers(0, n_atoms, max(count, 1))).tolist()),
    ]
    atoms.set_constraint([choice(rng, kinds) for _ in range(int(rng.integers(1, 3)))])
    return write(atoms, folder, rng)


def others(rng: np.random.Generator, folder: Path) -> Facts:
    """Constrain atoms in other ways, and perhaps fix some."""
    atoms = drawn_structure(rng)
    mask = [bool(flag) for flag in rng.integers(0, 2, 3)]
    atom = int(rng.integers(len(atoms)))
    kinds = [
        FixCartesian(atom, mask),
        FixScaled([atom], mask),
        FixBondLength(0, 1),
        FixedPlane(atom, (0, 0, 1)),
        FixedLine(atom, (0, 0, 1)),
        FixCom(),
        Hookean(0, 1, 5.0, rt=1.0),
        FixInternals(bonds=[[1.1, [0, 1]]]),
    ]
    constraints = [choice(rng, kinds)]
    if rng.random() < 0.5:
        constraints.insert(0, FixAtoms([atom]))
    atoms.set_constraint(constraints)
    return write(atoms, folder, rng)


def selections(rng: np.random.Generator, folder: Path) -> Facts:
    """Select atoms by conditions, or by fragments of them."""
    if rng.random() < 0.6:
        conditions = [choice(rng, CONDITIONS) for _ in range(int(rng.integers(1, 4)))]
        text = choice(rng, (",", "&", " , ")).join(conditions)
    else:
        text = "".join(choice(rng, PIECES) for _ in range(int(rng.integers(1, 9))))
    return write(drawn_structure(rng), folder, rng) | {"selection": text}


def check(folder: Path, facts: Facts) -> None:
    """Run a calculation, and compare what moves with the constraints."""
    atoms = ase.io.read(folder / "structure.xyz")
    atoms.set_constraint([dict2constraint(one) for one in decode_file(folder)])
    if "selection" in facts:
        check_command(folder, facts)
        atoms.set_constraint(FixAtoms(mask=select_atoms(atoms, facts["selection"])))
    before = atoms.positions.copy()
    try:
        calculate(folder, atoms, facts)
    except InputError:
        if (folder / "run").exists() or not np.array_equal(atoms.positions, before):
            raise Finding("a structure that was refused has moved, or left files") from None
        raise


def decode_file(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = decode((folder / "constraints.txt").read_text())
    return found


def calculate(folder: Path, atoms: Atoms, facts: Facts) -> None:
    """Run one of the calculations; the anchors of the springs are elsewhere than the atoms."""
    calculator = Many(atoms.positions + 0.05)
    expected = oracle(atoms)
    if facts["calculation"] == "relax":
        before = atoms.positions.copy()
        list(relax(atoms, calculator, steps=3))
        compare(atoms.positions, before, expected)
    elif facts["calculation"] == "vibrations":
        found = find_vibrations(atoms, calculator)
        if len(found.hessian) != 3 * int((~expected).sum()) or found.modes[:, expected].any():
            raise Finding("vibrations move fixed atoms, or leave others out")
    else:
        settings = Settings(
            stages=(Stage(facts["ensemble"], 4),),
            thermostat=facts["thermostat"],
            minimize=facts["minimize"],
            every=2,
        )
        given = [atoms] * facts["n_replicas"]
        simulation = Simulation.start(given, calculator, settings, folder / "run")
        simulation.run()
        for system in load_restart(simulation.restart_path).systems:
            compare(system.positions, atoms.positions, expected)
            if system.get_momenta()[expected].any():
                raise Finding("a fixed atom has a velocity")
            if not np.array_equal(fixed_atoms(system), expected):
                raise Finding("the restart file fixes other atoms")


def oracle(atoms: Atoms) -> np.ndarray:
    """Return the atoms that ASE keeps in place, if they are moved at random."""
    probe = atoms.copy()
    moved = probe.positions + np.random.default_rng(1).normal(0, 1e-3, probe.positions.shape)
    try:
        probe.set_positions(moved)
    except Exception:  # noqa: BLE001 - of constraints that the package refuses
        return np.zeros(len(atoms), dtype=bool)
    # FixScaled puts atoms back with rounding errors.
    return np.isclose(probe.positions, atoms.positions, rtol=0, atol=1e-9).all(1)


def compare(found: np.ndarray, before: np.ndarray, expected: np.ndarray) -> None:
    """Raise `Finding` unless exactly the atoms that are not fixed have moved."""
    if not np.array_equal((found == before).all(1), expected):
        raise Finding("fixed atoms have moved, or others have not")


def check_command(folder: Path, facts: Facts) -> None:
    """Give the selection to the command line, with a model that does not exist."""
    arguments = [facts["calculation"], str(folder / "structure.xyz"), "--model", "absent"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command_line([*arguments, f"--fix={facts['selection']}"])
        except SystemExit as error:
            code = error.code
    text = err.getvalue()
    if code != 2 or problem_of(text):
        raise Finding(f"exit code {code}, {problem_of(text) or 'one line'}: {text[:300]!r}")
    is_selected = "atoms are fixed" in out.getvalue() or facts["selection"].strip() == "none"
    if is_selected != ("absent" in text):
        raise Finding(f"a selection was neither taken nor refused: {text[:300]!r}")
    if facts["selection"].strip() == "none":
        raise Refusal("no atom is fixed")


KIND = Kind({"fixed": fixed, "others": others, "selections": selections}, check)
