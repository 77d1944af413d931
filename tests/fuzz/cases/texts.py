"""Information about structures with odd keys and values, which extended XYZ must give back."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms

from mlff_triton import predict_files
from mlff_triton.dynamics.trajectories.comment import OTHER, RESERVED, equals, to_json
from mlff_triton.statics.result_text import extended_xyz, with_results
from tests.fuzz.damage import STRINGS, choice, damaged, extreme
from tests.fuzz.kind import Facts, Finding, Kind
from tests.support.checkpoints import save_tiny_model

INFO = "info.pickle"
PIECES = (
    "=",
    "\\",
    '"',
    "'",
    "{",
    "}",
    "[",
    "]",
    " ",
    ",",
    "T",
    "1",
    "e5",
    "_JSON ",
    "a",
    "\t",
    "é",
)
KEYS = ("name", "energy", "error", "uid", "virial", "stress", "pbc", "Lattice", "Properties", OTHER)
RESULTS = {"energy": -1.5, "forces": np.ones((2, 3))}


def word(rng: np.random.Generator) -> str:
    """Draw a text of characters that mean something in a comment, or an odd one."""
    if rng.random() < 0.2:
        return str(choice(rng, STRINGS))
    return "".join(choice(rng, PIECES) for _ in range(int(rng.integers(0, 8))))


def value(rng: np.random.Generator, depth: int = 2) -> Any:
    """Draw a value of any type."""
    kind = rng.integers(6 if depth else 3)
    if kind == 0:
        return extreme(rng)
    if kind <= 2:
        return word(rng)
    if kind == 3:
        return [value(rng, depth - 1) for _ in range(int(rng.integers(0, 4)))]
    if kind == 4:
        return {word(rng): value(rng, depth - 1) for _ in range(int(rng.integers(0, 3)))}
    shape = tuple(int(n) for n in rng.integers(0, 4, int(rng.integers(0, 4))))
    dtype = choice(rng, (np.float64, np.float32, np.int64, np.uint8, np.bool_, "U4", object))
    return rng.normal(size=shape).astype(dtype)


def information(rng: np.random.Generator, folder: Path) -> Facts:
    """Draw the information about two structures."""
    drawn = [
        {choice(rng, KEYS) if rng.random() < 0.4 else word(rng): value(rng) for _ in range(3)}
        for _ in range(2)
    ]
    (folder / INFO).write_bytes(pickle.dumps(drawn))
    return {}


def comments(rng: np.random.Generator, folder: Path) -> Facts:
    """Draw comments of an XYZ file, well formed or not, for `predict_files`."""
    frames = []
    for _ in range(4):
        pairs = [f"{word(rng)}={word(rng)}" for _ in range(int(rng.integers(0, 4)))]
        text = " ".join(pairs).replace("\n", " ").encode(errors="ignore")
        comment = damaged(rng, text) if rng.random() < 0.2 else text
        frames.append(b"2\n%b\nH 0 0 0\nH 0 0 0.74\n" % comment.replace(b"\n", b" "))
    (folder / "in.xyz").write_bytes(b"".join(frames))
    save_tiny_model(folder)
    return {"frames": len(frames)}


def check(folder: Path, facts: Facts) -> None:
    """Write results, read them with ASE, and compare."""
    if "frames" in facts:
        predict_files("in.xyz", "out.xyz", model="tiny.safetensors", device="cpu")
        found = ase.io.read("out.xyz", ":", format="extxyz")
        if len(found) != facts["frames"]:
            raise Finding(f"{len(found)} frames instead of {facts['frames']}")
        for k, atoms in enumerate(found):
            if ("error" in atoms.info) == ("energy" in getattr(atoms.calc, "results", {})):
                raise Finding(f"frame {k} has no energy or error, or both: {atoms.info}")
        return
    drawn = pickle.loads((folder / INFO).read_bytes())
    images = [with_results(Atoms("H2", np.eye(2, 3), info=info), RESULTS) for info in drawn]
    (folder / "out.xyz").write_bytes(extended_xyz(images, [{"error": None}] * len(images)))
    found = ase.io.read(folder / "out.xyz", ":", format="extxyz")
    if len(found) != len(images):
        raise Finding(f"{len(found)} frames instead of {len(images)}")
    for atoms, info in zip(found, drawn, strict=True):
        compare(atoms, info)


def compare(atoms: Atoms, info: dict[str, Any]) -> None:
    """Raise `Finding` unless all information is found under its own key or under the common one."""
    if atoms.calc is None or atoms.get_potential_energy() != RESULTS["energy"]:
        raise Finding(f"the energy is lost: {info!r}")
    others = atoms.info.get(OTHER)
    for key, expected in info.items():
        places = [{}] if key in RESERVED else [atoms.info]
        places += [others] if isinstance(others, dict) else []
        found = [to_json(place[key]) for place in places if key in place]
        if not any(text in equals(to_json(expected)) for text in found):
            raise Finding(f"{key!r} is {found!r:.300} instead of {expected!r:.300}")


KIND = Kind({"information": information, "comments": comments}, check, is_refused=False)
