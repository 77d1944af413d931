"""One structure from the text of one record, by a reader of ASE."""

from __future__ import annotations

import io

import ase.io
from ase import Atoms


def structure_of(text: bytes, name: str) -> Atoms:
    """Return the structure of a text in a format, given by ASE's name."""
    file = io.BytesIO(text) if name == "cif" else io.StringIO(text.decode(errors="replace"))
    images = ase.io.read(file, ":", format=name)
    if not isinstance(images, list) or len(images) != 1:
        raise ValueError("it holds no structure that can be read, or several")
    (atoms,) = images
    return atoms
