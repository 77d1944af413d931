"""One line per atom of a file in extended XYZ: the symbol, then numbers with eight decimals."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from ase.data import chemical_symbols

from mlff_triton.dynamics.trajectories.fixed_point import FIELD, WIDTH, fits, fixed_point

SYMBOLS = np.array([symbol.ljust(2) for symbol in chemical_symbols], "S2")
REST = 3  # characters of a line beside its numbers: the symbol, and the end


def atom_lines(numbers: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> bytes:
    r"""Return the lines of atoms, with the bytes that ASE writes.

    Parameters
    ----------
    numbers : int64 [N]
        Atomic numbers.
    values : float64 [N, C]
        Numbers of each atom.

    Examples
    --------
    >>> atom_lines(np.array([8]), np.array([[0.0, -1.5]]))
    b'O        0.00000000      -1.50000000\n'
    """
    symbols = SYMBOLS[numbers]
    return _table(symbols, values) if fits(values) else _wide_table(symbols, values)


def lines_of_many(
    numbers: list[npt.NDArray[np.int64]], values: list[npt.NDArray[np.float64]]
) -> list[bytes]:
    """Return the lines of each of many systems, formatted together; C is the same for all."""
    everything = np.concatenate(values)
    if not fits(everything):
        return [atom_lines(*one) for one in zip(numbers, values, strict=True)]
    text = _table(SYMBOLS[np.concatenate(numbers)], everything)
    length = REST + WIDTH * everything.shape[1]
    ends = (np.cumsum([0, *map(len, numbers)]) * length).tolist()
    return [text[start:end] for start, end in pairwise(ends)]


def _table(symbols: npt.NDArray[np.bytes_], values: npt.NDArray[np.float64]) -> bytes:
    """Format numbers that fit their width."""
    line: list[Any] = [("symbol", "S2"), ("values", FIELD, (values.shape[1],)), ("end", "S1")]
    rows = np.empty(len(values), np.dtype(line))
    rows["symbol"] = symbols
    fixed_point(values, rows["values"])
    rows["end"] = b"\n"
    return rows.tobytes()


def _wide_table(symbols: npt.NDArray[np.bytes_], values: npt.NDArray[np.float64]) -> bytes:
    """Format numbers of any size."""
    return b"".join(
        symbol + b"".join(b" %16.8f" % value for value in row) + b"\n"
        for symbol, row in zip(symbols.tolist(), values.tolist(), strict=True)
    )
