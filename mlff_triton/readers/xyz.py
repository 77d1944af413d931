"""Frames of XYZ and extended XYZ files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO

import ase.io
from ase import Atoms
from ase.io.extxyz import key_val_str_to_dict

from mlff_triton.readers.lines import (
    LONGEST,
    DividingError,
    announced_count,
    announced_lines,
)

LARGE_COUNT = re.compile(rb":[^:\s]*\d_?\d_?\d")
"""A number behind a colon that may be one of more than 99 columns."""


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the text of each frame: a line with the number of atoms, a comment, and the atoms."""
    number = 0
    while head := file.readline(LONGEST):
        if not head.strip():
            if not file.read(LONGEST).strip():  # blank lines at the end
                return
            raise DividingError(f"frame {number} begins with a blank line")
        count = announced_count(head, number)
        comment = file.readline(LONGEST)
        atoms = announced_lines(file, count, number)
        if not comment.endswith(b"\n") and count:
            raise DividingError(f"frame {number} lacks its comment")
        yield b"".join([head, comment, *atoms])
        number += 1


def parse(text: bytes) -> Atoms:
    """Return the structure of a frame."""
    (atoms,) = parse_many([text])
    return atoms


def parse_many(texts: list[bytes]) -> list[Atoms]:
    """Return the structures of frames, which ASE parses faster together."""
    for text in texts:
        _check_columns(text)
    whole = io.StringIO(b"".join(texts).decode())
    images: list[Atoms] = list(ase.io.read(whole, ":", format="extxyz"))
    if len(images) != len(texts):
        raise ValueError("frames overlap")
    return images


def _check_columns(text: bytes) -> None:
    """Refuse a comment that announces more columns than there are, for which ASE takes memory."""
    first = text.find(b"\n") + 1
    last = text.find(b"\n", first)
    comment = text[first:last]
    if not LARGE_COUNT.search(comment):
        return
    columns = str(key_val_str_to_dict(comment.decode()).get("Properties", "")).split(":")[2::3]
    announced = sum(int(count) for count in columns)
    found = len(text[last + 1 :].partition(b"\n")[0].split())
    if announced > found or any(int(count) < 0 for count in columns):
        raise ValueError(f"Properties announces {announced} columns, and the atoms have {found}")
