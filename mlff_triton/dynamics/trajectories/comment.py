r"""Information about a structure in the comment of extended XYZ, which ASE reads back unchanged.

ASE's own writer loses None, empty texts, and texts that end in a backslash or an equals sign; texts
that look like numbers come back as numbers, and some keys make a file unreadable. Here, each value
is written in the first of these forms that ``ase.io.read`` turns into the same value again:

1. as ASE writes it: ``name=water``, ``label="two words"``, ``weights="0.5 0.25"``
2. as JSON, which ASE reads too: ``id="_JSON \"007\""``
3. in one dictionary of all the others, in JSON, under the key ``other``

The dictionary takes values whose keys have another meaning in the comment, such as ``energy`` or
``Lattice``, and values that ASE cannot read under their own keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from ase.calculators.calculator import all_properties
from ase.io.extxyz import key_val_str_to_dict
from ase.spacegroup import Spacegroup
from numpy.typing import NDArray

OTHER = "other"
RESERVED = frozenset({"Lattice", "Properties", "pbc", *all_properties})
MATRIX = [0, 5, 4, 5, 1, 3, 4, 3, 2]  # elements of a 3x3 stress in Voigt's notation
MATRICES = ("virial",)  # which ASE reads as a matrix, column by column
NEXT = "next_pair"  # key that must survive behind a pair
COLUMNS = re.compile(r"(Properties=\S+)")
SPECIAL = re.compile(r"[\s\"'{}\[\]=\\]")  # what ASE takes for the end of a word, or for a quote


def comment_of(
    cell: NDArray[np.float64], pbc: NDArray[np.bool_], columns: str, results: Mapping[str, Any]
) -> str:
    """Return a comment as ASE writes it, without information about the structure.

    Parameters
    ----------
    cell : float64 [3, 3]
        Lattice vectors as rows, in Å.
    pbc : bool [3]
        Periodic directions.
    columns : str
        Columns of the file, such as "species:S:1:pos:R:3".
    results : mapping
        Results in the form of ASE's calculators; energy, stress and dipole are written.

    Examples
    --------
    >>> comment_of(np.zeros((3, 3)), np.zeros(3, bool), "species:S:1:pos:R:3", {"energy": -1.5})
    'Properties=species:S:1:pos:R:3 energy=-1.5 pbc="F F F"'
    """
    words = [f'Lattice="{_words(cell)}"'] if cell.any() else []
    words.append(f"Properties={columns}")
    if "energy" in results:
        words.append(f"energy={results['energy']}")
    if "stress" in results:
        words.append(f'stress="{_words(np.asarray(results["stress"])[MATRIX])}"')
    if "dipole" in results:
        words.append(f'dipole="{_words(results["dipole"])}"')
    words.append('pbc="{} {} {}"'.format(*("FT"[bool(x)] for x in pbc)))
    return " ".join(words)


def _words(values: Any) -> str:
    return " ".join(map(str, np.ravel(values).tolist()))


def with_info(comment: str, info: Mapping[Any, Any], own: Mapping[str, Any]) -> str:
    r"""Insert information about a structure into a comment, behind its columns as ASE does.

    Parameters
    ----------
    comment : str
        The comment that ASE writes, with cell, columns and results.
    info : mapping
        Information of users, with keys and values of any type. Values that JSON cannot represent
        become text.
    own : mapping of str
        Information of the package. The structure's own values under these names move to ``other``,
        even if a value here is None, which is not written.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> with_info("Properties=species:S:1:pos:R:3 pbc=F", {"id": "7", "name": "water"}, {"step": 7})
    'Properties=species:S:1:pos:R:3 id="_JSON \\"7\\"" name=water step=7 pbc=F'
    """
    contents = {key: to_json(value) for key, value in info.items()}
    pairs = {key: _free_pair(key, content, own) for key, content in contents.items()}
    others = [key for key, pair in pairs.items() if pair is None]
    if others and pairs.get(OTHER) is not None:
        others.append(OTHER)
    found = [pair for key, pair in pairs.items() if key not in others]
    found += [_pair(key, to_json(value)) for key, value in own.items() if value is not None]
    if others:
        whole = ", ".join(f"{json.dumps(str(key))}: {contents[key]}" for key in others)
        found.append(_as_json(OTHER, f"{{{whole}}}"))
    head, columns, tail = COLUMNS.split(comment, maxsplit=1)
    return " ".join([head + columns, *filter(None, found)]) + tail


def to_json(value: object) -> str:
    """Return any value as JSON: arrays as lists, and values unknown to JSON as text."""
    try:
        return json.dumps(value, default=_simpler)
    except (TypeError, ValueError, RecursionError):  # keys of other types, or a cycle
        return json.dumps(_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits
        return f"<{type(value).__name__}>"


def _simpler(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Spacegroup):  # of CIF files
        return value.symbol
    return list(value) if isinstance(value, (set, frozenset)) else str(value)


def _free_pair(key: object, content: str, own: Mapping[str, Any]) -> str | None:
    """Return a user's pair as `_pair` does; its key must have no other meaning."""
    is_free = isinstance(key, str) and key not in RESERVED and key not in own
    return _pair(str(key), content) if is_free else None


@lru_cache(maxsize=128)
def _pair(key: str, content: str) -> str | None:
    """Return the first form of a pair that ASE reads as the value, given as JSON; None if none."""
    plain = _plain(key, json.loads(content))
    forms = [] if plain is None else [f"{_quoted(key)}={plain}"]
    return next(
        (form for form in (*forms, _as_json(key, content)) if _is(form, key, content)), None
    )


def _is(form: str, key: str, content: str) -> bool:
    """Return True if ASE reads a pair as the key and the value, and then the next pair."""
    if not form.isprintable():
        return False
    try:
        found = key_val_str_to_dict(f"{form} {NEXT}=1")
        return found.keys() == {key, NEXT} and to_json(found[key]) in equals(content)
    except Exception:  # noqa: BLE001 - ASE raises many kinds
        return False


def equals(content: str) -> Iterator[str]:
    """Yield JSON of the value, unchanged and with all numbers of an array of one type."""
    yield content
    with suppress(ValueError):  # lists of different lengths, or too deep
        yield to_json(np.array(json.loads(content)))


def _as_json(key: str, content: str) -> str:
    return f"{_quoted(key)}={_quoted(f'_JSON {content}')}"


def _plain(key: str, value: Any) -> str | None:
    """Return a value as ASE writes it; None if it has no such form."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, (int, float)):
        return str(value)
    if key in MATRICES and _is_matrix(value):
        value = np.transpose(value).ravel().tolist()
    if isinstance(value, list) and value and all(type(item) in (int, float) for item in value):
        return _quoted(" ".join(map(str, value)))
    return None


def _is_matrix(value: Any) -> bool:
    try:
        return bool(np.shape(value) == (3, 3))
    except ValueError:  # lists of different lengths, or too deep
        return False


def _quoted(text: str) -> str:
    """Return a text as one word of a comment."""
    if text and not SPECIAL.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
