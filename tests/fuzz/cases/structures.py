"""Structures that nobody means, as files and as arrays."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms

from mlff_triton import Engine
from mlff_triton.dynamics import read_structure
from mlff_triton.testing import random_cluster, random_crystal
from tests.fuzz import oracle
from tests.fuzz.damage import (
    EXTREMES,
    SPECIAL_FILES,
    STRINGS,
    choice,
    damaged,
    extreme,
    make_special,
)
from tests.fuzz.kind import Facts, Finding, Kind
from tests.support.checkpoints import native

FORMATS = {
    "a.xyz": "xyz",
    "a.extxyz": "extxyz",
    "a.pdb": "proteindatabank",
    "a.cif": "cif",
    "POSCAR": "vasp",
}
NUMBER = re.compile(rb"-?\d+\.\d+")
ARRAYS = "arrays.pickle"


def random_atoms(rng: np.random.Generator) -> Atoms:
    """Draw a cluster or a crystal."""
    seed, size = int(rng.integers(2**32)), int(rng.integers(1, 10))
    kind = choice(rng, ("cluster", "cubic", "triclinic", "small", "slab", "rod"))
    if kind == "cluster":
        return random_cluster(size, seed=seed)
    return random_crystal(size, kind, seed=seed)


def text_of(rng: np.random.Generator, name: str) -> bytes:
    """Draw a structure, and return its file."""
    atoms, text = random_atoms(rng), io.StringIO()
    if name in ("a.cif", "POSCAR"):
        atoms = random_crystal(len(atoms), seed=int(rng.integers(2**32)))
    if name == "a.cif":
        content = io.BytesIO()
        ase.io.write(content, atoms, format="cif")
        return content.getvalue()
    ase.io.write(text, atoms, format=FORMATS[name])
    return text.getvalue().encode()


def damaged_file(rng: np.random.Generator, folder: Path) -> Facts:
    """Damage the bytes of a file."""
    name = choice(rng, FORMATS)
    (folder / name).write_bytes(damaged(rng, text_of(rng, name)))
    return {"path": name}


def odd_numbers(rng: np.random.Generator, folder: Path) -> Facts:
    """Replace numbers in a file by others, or by words."""
    name = choice(rng, FORMATS)
    text = text_of(rng, name)
    found = list(NUMBER.finditer(text))
    if found:
        match = choice(rng, found)
        value = choice(rng, (*EXTREMES, *STRINGS[:6], "T", "1_0", "0x10", "١", "1d3", "***"))
        new = str(value).encode(errors="surrogatepass")
        text = text[: match.start()] + new + text[match.end() :]
    (folder / name).write_bytes(text)
    return {"path": name}


def odd_lines(rng: np.random.Generator, folder: Path) -> Facts:
    """Remove, repeat, swap or insert lines of a file."""
    name = choice(rng, FORMATS)
    lines = text_of(rng, name).splitlines(keepends=True)
    for _ in range(rng.geometric(0.5)):
        k, m = (int(x) for x in rng.integers(0, len(lines), 2))
        action = rng.integers(4)
        if action == 0 and len(lines) > 1:
            del lines[k]
        elif action == 1:
            lines[k:k] = [lines[k]] * int(rng.integers(1, 50))
        elif action == 2:
            lines[k], lines[m] = lines[m], lines[k]
        else:
            lines[k:k] = [str(choice(rng, STRINGS)).encode(errors="ignore") + b"\n"]
    (folder / name).write_bytes(b"".join(lines))
    return {"path": name}


def odd_count(rng: np.random.Generator, folder: Path) -> Facts:
    """Replace the first line of a file, which often is the number of atoms."""
    name = choice(rng, FORMATS)
    rest = text_of(rng, name).partition(b"\n")[2]
    (folder / name).write_bytes(str(choice(rng, EXTREMES)).encode() + b"\n" + rest)
    return {"path": name}


def special_file(rng: np.random.Generator, folder: Path) -> Facts:  # noqa: ARG001 - empty folder
    """Name something that is not an ordinary file."""
    return {"path": choice(rng, FORMATS), "special": choice(rng, SPECIAL_FILES)}


def odd_cell(rng: np.random.Generator, atoms: Atoms) -> None:
    """Make the cell tiny, long, skewed, left-handed or singular."""
    cell = atoms.cell.array
    kind = rng.integers(7)
    if kind == 0:
        cell *= 10 ** rng.uniform(-4, 1)
    elif kind == 1:
        cell[int(rng.integers(3))] *= 10 ** rng.uniform(0, 9)
    elif kind == 2:
        cell[0] += cell[1] * rng.uniform(-100, 100)
    elif kind == 3:
        cell[:] = cell[::-1]
    elif kind == 4:
        cell[0] = cell[1] * (1 + choice(rng, (0, 1e-15, 1e-9)))
    elif kind == 5:
        cell[tuple(rng.integers(0, 3, 2))] = choice(rng, EXTREMES)
    else:
        cell[:] = np.diag(10 ** rng.uniform(-1, 6, 3))
    atoms.pbc = rng.random(3) < 0.8


def odd_positions(rng: np.random.Generator, atoms: Atoms) -> None:
    """Put atoms onto each other, far away, or in other units."""
    k, m = rng.integers(0, len(atoms), 2)
    kind = rng.integers(5)
    if kind == 0:
        atoms.positions[k] = atoms.positions[m] + 10 ** rng.uniform(-6, 0) * rng.normal(size=3)
    elif kind == 1:
        atoms.positions[k] += 10 ** rng.uniform(0, 300) * rng.normal(size=3)
    elif kind == 2:
        atoms.positions *= choice(rng, (0.1, 10, 0.001, 1e10, 0, -1, 0.529177))
    elif kind == 3:
        atoms.positions[k, int(rng.integers(3))] = choice(rng, EXTREMES)
    else:
        atoms.positions += 10 ** rng.uniform(0, 12)


def odd_atoms(rng: np.random.Generator, folder: Path) -> Facts:
    """Write Atoms with odd cells, positions and elements."""
    atoms = random_atoms(rng)
    if atoms.cell.rank == 0 and rng.random() < 0.5:
        atoms.cell.array[:] = np.eye(3) * rng.uniform(1, 20)
    for change in (odd_cell, odd_positions):
        if rng.random() < 0.5:
            with np.errstate(all="ignore"):
                change(rng, atoms)
    if rng.random() < 0.1:
        atoms.numbers[0] = choice(rng, (0, 118, 119, 10**6, -1, 9))
    (folder / ARRAYS).write_bytes(pickle.dumps(atoms))
    return {"atoms": True}


def odd_charge(rng: np.random.Generator, folder: Path) -> Facts:
    """Write Atoms with a charge of another type or size."""
    atoms = random_atoms(rng)
    atoms.info["charge"] = choice(
        rng, (extreme(rng), -2, np.array([1]), np.array(1), np.float32(1), 1 + 0j, "1", b"1")
    )
    (folder / ARRAYS).write_bytes(pickle.dumps(atoms))
    return {"atoms": True}


def odd_arrays(rng: np.random.Generator, folder: Path) -> Facts:
    """Write arguments of the engine of which one has another type, shape or value."""
    atoms = random_atoms(rng)
    arguments: dict[str, Any] = {
        "numbers": atoms.numbers,
        "positions": atoms.positions,
        "cell": atoms.cell.array,
        "pbc": atoms.pbc,
        "batch": None,
        "charge": None,
    }
    name = choice(rng, arguments)
    given = arguments[name]
    changes = [
        extreme(rng),
        "TTF",
        "false",
        [2, 0, 0],
        np.zeros((0, 3)),
        np.full((len(atoms), 3), "1"),
        [[0.0, 0.0, 0.0], [1.0]],
        np.arange(len(atoms)),
        np.ones(1000),
    ]
    if given is not None:
        changes += [given.astype(t) for t in (np.float32, np.int8, np.complex128, object, str)]
        changes += [given[:-1], given[None], given.T, given.tolist(), given.ravel()]
    arguments[name] = choice(rng, changes)
    (folder / ARRAYS).write_bytes(pickle.dumps(arguments))
    return {"atoms": False}


def check(folder: Path, facts: Facts) -> None:
    """Compute the energy and forces of the structure, and compare them."""
    if facts.get("special"):
        make_special(facts["special"], folder / facts["path"])
    if "path" in facts:
        oracle.check_results(native(), read_structure(facts["path"]))
        return
    given = pickle.loads((folder / ARRAYS).read_bytes())
    if facts["atoms"]:
        oracle.check_results(native(), given)
        return
    prediction = Engine(native(), device="cpu", dtype="float64").compute(**given)
    if not (prediction.energy.isfinite().all() and prediction.forces.isfinite().all()):
        raise Finding("energy or forces are not finite")


KIND = Kind(
    {
        "damaged file": damaged_file,
        "odd numbers in a file": odd_numbers,
        "odd lines in a file": odd_lines,
        "odd count in a file": odd_count,
        "special file": special_file,
        "odd atoms": odd_atoms,
        "odd charge": odd_charge,
        "odd arrays": odd_arrays,
    },
    check,
)
