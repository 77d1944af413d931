"""Structures with their values in a file: energies, forces, and other values by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mlff_triton.readers.files import frames_of

OWN = ("numbers", "positions")


class Labeled(NamedTuple):
    """A structure and its values.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers.
    positions : float64 [N, 3]
        Positions in the unit of the file.
    cell : float64 [3, 3]
        Lattice vectors as rows, in the same unit; zero in directions without one.
    pbc : bool [3]
        Periodic directions.
    values : dict of str
        Everything else, by the names in the file: results, values of the structure, and arrays with
        a row per atom.
    """

    numbers: NDArray[Any]
    positions: NDArray[Any]
    cell: NDArray[Any]
    pbc: NDArray[Any]
    values: dict[str, Any]


def labeled_frames(path: Path) -> Iterator[Labeled | str]:
    """Yield each structure of a file that ASE reads, or why it cannot be read.

    Raises
    ------
    InputError
        If the file cannot be read, or frames cannot be told apart.
    """
    for found in frames_of(path, with_results=True):
        yield found if isinstance(found, str) else _labeled(found)


def _labeled(atoms: Atoms) -> Labeled:
    arrays = {name: array for name, array in atoms.arrays.items() if name not in OWN}
    results = {} if atoms.calc is None else atoms.calc.results
    values = {**arrays, **{str(key): value for key, value in atoms.info.items()}, **results}
    return Labeled(
        atoms.numbers.astype(np.int64),
        atoms.positions,
        atoms.cell.array,
        atoms.pbc,
        values,
    )
