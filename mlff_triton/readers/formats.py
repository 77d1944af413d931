"""Formats whose records are separated before they are parsed, and suffixes of structure files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from ase import Atoms

from mlff_triton._common.text import first_line
from mlff_triton.readers import cif, gen, gro, mol2, pdb, sdf, xyz

COMPRESSED = (".gz", ".bz2", ".xz")
OTHERS = (  # suffixes of ASE's formats that hold structures; json is the suffix of its databases
    *(".traj", ".db", ".vasp", ".poscar", ".xsf", ".axsf", ".cube", ".lammpstrj", ".con"),
    *(".cfg", ".xsd", ".xtd", ".car", ".arc", ".gjf", ".com", ".res", ".g96", ".cjson", ".json"),
)
NAMES = ("POSCAR*", "*.POSCAR", "CONTCAR*", "*.CONTCAR", "XDATCAR*", "*.XDATCAR")


@dataclass(frozen=True)
class Format:
    """A text format of structure files.

    Attributes
    ----------
    name : str
        Key in `FORMATS`.
    suffixes : tuple of str
        Suffixes of its files.
    split : callable
        Yields the text of each record of an open file, a few records at a time.
    parse : callable
        Returns the structure of a text. Errors are of any class.
    is_trajectory : bool
        True if records are steps of one system; the last one counts.
    parse_many : callable, optional
        Returns the structures of many texts, faster than one by one.
    """

    name: str
    suffixes: tuple[str, ...]
    split: Callable[[IO[bytes]], Iterator[bytes]]
    parse: Callable[[bytes], Atoms]
    is_trajectory: bool = False
    parse_many: Callable[[list[bytes]], list[Atoms]] | None = None

    def structures(self, texts: Sequence[bytes]) -> list[Atoms | str]:
        """Return the structure of each text, or one line that says why it has none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about fields that are not used here
            if self.parse_many is not None and len(texts) > 1:
                with suppress(Exception):  # then one by one, so that the others are kept
                    return list(self.parse_many(list(texts)))
            return [self._structure(text) for text in texts]

    def _structure(self, text: bytes) -> Atoms | str:
        if not text.strip():
            return "the frame is empty"
        try:
            return self.parse(text)
        except KeyError as error:
            return f"the frame cannot be read: there is no element {error}"
        except Exception as error:  # noqa: BLE001 - ASE raises many kinds
            return f"the frame cannot be read: {first_line(error)}"


FORMATS = {
    kind.name: kind
    for kind in (
        Format("xyz", (".xyz", ".extxyz"), xyz.split, xyz.parse, True, xyz.parse_many),
        Format("sdf", (".sdf", ".sd", ".mol", ".mdl"), sdf.split, sdf.parse),
        Format("mol2", (".mol2",), mol2.split, mol2.parse),
        Format("pdb", (".pdb", ".ent"), pdb.split, pdb.parse),
        Format("cif", (".cif",), cif.split, cif.parse),
        Format("gro", (".gro",), gro.split, gro.parse, True),
        Format("gen", (".gen",), gen.split, gen.parse, True),
    )
}


def _suffix(path: Path) -> str:
    """Return the suffix of a file's name, without that of its compression, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def find_format(path: Path) -> Format | None:
    """Return the format of a file's name, or None if ASE reads it as a whole."""
    suffix = _suffix(path)
    return next((kind for kind in FORMATS.values() if suffix in kind.suffixes), None)


def is_structure_file(path: Path) -> bool:
    """Return True if the name of a file says that it holds only structures."""
    if path.name.startswith("."):
        return False
    if find_format(path) is not None:
        return True
    if any(fnmatchcase(path.name, pattern) for pattern in NAMES):
        return path.suffix.lower() not in (".partial", ".journal", ".lock", ".new")
    return _suffix(path) in OTHERS and path.suffix.lower() not in COMPRESSED
