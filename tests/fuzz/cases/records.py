"""Files of several records, of which one is damaged: all others must come back, with charges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from mlff_triton.errors import InputError
from mlff_triton.readers import frames_of
from mlff_triton.testing import random_cluster
from tests.fuzz.damage import EXTREMES, STRINGS, choice, damaged
from tests.fuzz.kind import Facts, Finding, Kind, Refusal
from tests.fuzz.verdict import problem_of
from tests.support.molecule_files import mol2, pdb, v2000, v3000

EXPECTED = "expected.json"
SUFFIXES = {"v2000": ".sdf", "v3000": ".sdf", "codes": ".sdf", "mol2": ".mol2", "pdb": ".pdb"}
NAMES = ("id", "charge of the assay", "score", "", "M  END", "Properties")
TOLERANCE = 1.1e-3  # Å, of positions with three decimals


def draw(rng: np.random.Generator, kind: str) -> tuple[str, dict[str, Any]]:
    """Draw a molecule with formal charges. Return its record, and what a reader must find."""
    atoms = random_cluster(int(rng.integers(1, 9)), seed=int(rng.integers(2**32)))
    chosen = rng.permutation(len(atoms))[: int(rng.integers(0, 4))]
    charges = {int(k): int(rng.integers(-3, 4)) for k in chosen}
    fields = {} if rng.random() < 0.5 else {choice(rng, NAMES): str(rng.integers(-9, 10))}
    record = _written(kind, atoms, charges, fields)
    facts = {"numbers": atoms.numbers.tolist(), "positions": atoms.positions.tolist()}
    return record, facts | {"charge": sum(charges.values())}


def _written(kind: str, atoms: Atoms, charges: dict[int, int], fields: dict[str, str]) -> str:
    if kind == "v2000":
        return v2000(atoms, "molecule", fields, charges)
    if kind == "codes":
        return v2000(atoms, "molecule", fields, codes=charges)
    if kind == "v3000":
        return v3000(atoms, "molecule", fields, charges)
    if kind == "mol2":
        return mol2(atoms, "molecule", formal=charges)
    columns = {k: f"{abs(q)}{'-' if q < 0 else '+'}" for k, q in charges.items()}
    return "MODEL        1\n" + pdb([atoms], columns).replace("END\n", "ENDMDL\n")


def _write(folder: Path, kind: str, records: list[bytes], expected: list[Any]) -> Facts:
    path = folder / f"a{SUFFIXES[kind]}"
    path.write_bytes(b"".join(records))
    (folder / EXPECTED).write_text(json.dumps(expected))
    return {"path": path.name}


def _some(rng: np.random.Generator) -> tuple[str, list[bytes], list[Any]]:
    kind = choice(rng, SUFFIXES)
    drawn = [draw(rng, kind) for _ in range(int(rng.integers(1, 6)))]
    return kind, [record.encode() for record, _ in drawn], [facts for _, facts in drawn]


def intact(rng: np.random.Generator, folder: Path) -> Facts:
    """Write several molecules."""
    return _write(folder, *_some(rng))


def damaged_record(rng: np.random.Generator, folder: Path) -> Facts:
    """Damage the bytes of one record, apart from the lines where records begin and end."""
    kind, records, expected = _some(rng)
    k = int(rng.integers(len(records)))
    first, body, last = _parts(kind, records[k])
    records[k], expected[k] = first + damaged(rng, body) + b"\n" + last, None
    return _write(folder, kind, records, expected)


def odd_word(rng: np.random.Generator, folder: Path) -> Facts:
    """Replace a word of one record by an extreme number, or by text."""
    kind, records, expected = _some(rng)
    k = int(rng.integers(len(records)))
    first, body, last = _parts(kind, records[k])
    words = body.split(b" ")
    value = str(choice(rng, (*EXTREMES, *STRINGS, "-1", "999999999", "2D", "V3000", "CHG=9")))
    words[int(rng.integers(len(words)))] = value.encode(errors="ignore").replace(b"$$$$", b"")
    records[k], expected[k] = first + b" ".join(words) + b"\n" + last, None
    return _write(folder, kind, records, expected)


def _parts(kind: str, record: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the first line of a record if others end there, its body, and its last line."""
    first, _, rest = record.partition(b"\n") if kind in ("mol2", "pdb") else (b"", b"", record)
    first += b"\n" if first else b""
    if kind == "mol2":
        return first, rest, b""
    body, _, last = rest.rstrip(b"\n").rpartition(b"\n")
    return first, body, last + b"\n"


def check(folder: Path, facts: Facts) -> None:
    """Compare records before the damaged one from the start, and those behind it from the end."""
    expected = json.loads((folder / EXPECTED).read_text())
    try:
        found = list(frames_of(folder / facts["path"]))
    except InputError:
        if None not in expected:
            raise Finding("an intact file was refused") from None
        raise
    for frame in found:
        _check_one(frame)
    at = expected.index(None) if None in expected else len(expected)
    if at == len(expected) != len(found):
        raise Finding(f"{len(found)} records were read, not {len(expected)}")
    for frame, facts_of_one in zip(found[:at], expected[:at], strict=True):
        _compare(frame, facts_of_one)
    behind = len(expected) - at - 1
    for k in range(1, behind + 1):
        _compare(found[-k] if k <= len(found) else "it is missing", expected[-k])
    refused = [frame for frame in found if isinstance(frame, str)]
    if refused:
        raise Refusal(refused[0])


def _check_one(frame: Atoms | str) -> None:
    if isinstance(frame, str):
        problem = problem_of(frame)
        if problem:
            raise Finding(f"{problem}: {frame[:300]!r}")
    elif len(frame) and not 0 < frame.numbers.min() <= frame.numbers.max() < 119:
        raise Finding("atoms that are no elements were read")


def _compare(frame: Atoms | str, expected: dict[str, Any]) -> None:
    """Raise `Finding` unless a record was read as it was written."""
    if isinstance(frame, str):
        raise Finding(f"an intact record was refused: {frame}")
    if frame.numbers.tolist() != expected["numbers"]:
        raise Finding("elements differ")
    if np.abs(frame.positions - expected["positions"]).max() > TOLERANCE:
        raise Finding("positions differ")
    if frame.info.get("charge", 0) != expected["charge"]:
        raise Finding(f"the charge is {frame.info.get('charge')}, not {expected['charge']}")


KIND = Kind(
    {"intact records": intact, "damaged record": damaged_record, "odd word in a record": odd_word},
    check,
)
