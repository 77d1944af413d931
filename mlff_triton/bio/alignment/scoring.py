"""Substitution matrices and gap penalties."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton._common.remedies import install
from mlff_triton.errors import InputError
from mlff_triton.kernels.alignment.types import Gaps

BASES = "ACGT"
ANY_BASE = "N"
AMINO_ACIDS = "ARNDCQEGHILKMFPSTWYV"
ALPHABETS = {  # for matrices without row names, by size
    4: BASES,
    5: BASES + ANY_BASE,
    20: AMINO_ACIDS,
    24: AMINO_ACIDS + "BZX*",
}
NUCLEOTIDES = "ACGTURYSWKMBDHVN"  # bases, and sets of bases
MATCH, MISMATCH = 2, -3  # defaults
GAPS_OF_BASES, GAPS_OF_PROTEINS = Gaps(5, 2), Gaps(11, 1)  # defaults


class Scoring(NamedTuple):
    """A substitution matrix with affine gap penalties.

    Attributes
    ----------
    letters : str
        Residues or bases in the order of the matrix, upper case.
    matrix : int64 [A, A]
        Symmetric substitution matrix, on the CPU.
    gaps : Gaps
        A gap of length k costs ``open + (k - 1) extend``.
    """

    letters: str
    matrix: Tensor
    gaps: Gaps

    @classmethod
    def of(
        cls,
        matrix: Any,
        match: int,
        mismatch: int,
        gap_open: int | None = None,
        gap_extend: int | None = None,
    ) -> Scoring:
        """Build the scoring from the arguments of `align`.

        Raises
        ------
        InputError
            If the matrix is unknown, not symmetric or not of integers, or if a gap penalty is
            negative.
        """
        if matrix is None:
            letters, scores = _of_bases(_integer("match", match), _integer("mismatch", mismatch))
        elif (match, mismatch) == (MATCH, MISMATCH):
            letters, scores = _read(matrix)
        else:
            raise InputError("give either match and mismatch or a matrix, but not both")
        checked = _checked(letters, scores)
        usual = GAPS_OF_PROTEINS if is_protein(letters) else GAPS_OF_BASES
        gaps = _gaps(
            usual.open if gap_open is None else gap_open,
            usual.extend if gap_extend is None else gap_extend,
        )
        return cls(letters, torch.from_numpy(checked), gaps)


def is_protein(letters: str) -> bool:
    """Return True if an alphabet has all amino acids."""
    return set(letters) >= set(AMINO_ACIDS)


def is_nucleic(letters: str) -> bool:
    """Return True if an alphabet has only the four bases and symbols for sets of them."""
    return set(BASES) <= set(letters) <= set(NUCLEOTIDES)


def _gaps(gap_open: Any, gap_extend: Any) -> Gaps:
    """Check gap penalties."""
    gaps = Gaps(_integer("gap_open", gap_open), _integer("gap_extend", gap_extend))
    for name, cost in (("gap_open", gaps.open), ("gap_extend", gaps.extend)):
        if cost < 0:
            raise InputError(f"{name}={cost} is a penalty, not a score: did you mean {-cost}?")
    if gaps.extend > gaps.open:
        raise InputError(
            f"gap_extend={gaps.extend} is more than gap_open={gaps.open}: the first position "
            "of a gap costs gap_open, and each further one gap_extend"
        )
    return gaps


def _integer(name: str, value: Any) -> int:
    """Convert an integer, also one in floating point as in Biopython."""
    is_whole = isinstance(value, float) and value.is_integer()
    try:
        found = int(value) if is_whole else index(value)
    except TypeError:
        raise InputError(
            f"{name}={value!r} is not an integer: multiply all scores and penalties by a factor"
        ) from None
    if abs(found) >= 2**31:
        raise InputError(f"{name}={value!r} is too large for int32: use smaller scores")
    return found


def _of_bases(match: int, mismatch: int) -> tuple[str, np.ndarray]:
    """Return the matrix of bases and N, which stands for any base and matches nothing."""
    if mismatch > match:
        raise InputError(
            f"mismatch={mismatch} is above match={match}: mismatch is a score, not a penalty, so "
            "equal bases must score more"
        )
    scores = np.full((5, 5), mismatch)
    np.fill_diagonal(scores[:4, :4], match)
    return BASES + ANY_BASE, scores


def _read(matrix: Any) -> tuple[str, np.ndarray]:
    """Return the alphabet of a matrix, and its scores."""
    if isinstance(matrix, str):
        matrix = _named(matrix)
    letters = getattr(matrix, "alphabet", None)  # Biopython's arrays
    if letters is None and hasattr(matrix, "columns"):  # DataFrames
        letters = "".join(matrix.columns)
    try:
        scores = np.asarray(matrix)
    except ValueError:
        raise InputError("the matrix must be square, but its rows differ in length") from None
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
        raise InputError(f"the matrix must be square, but its shape is {list(scores.shape)}")
    if letters is None and len(scores) not in ALPHABETS:
        raise InputError(
            f"a matrix of size {len(scores)} must name its rows: give one of Biopython's arrays or "
            f"a DataFrame. Without names, 4 rows are {BASES}, 5 are {ALPHABETS[5]}, 20 are "
            f"{AMINO_ACIDS} and 24 are {ALPHABETS[24]}"
        )
    return "".join(letters or ALPHABETS[len(scores)]).upper(), scores


@cache
def _named(name: str) -> Any:
    """Load one of Biopython's matrices."""
    if find_spec("Bio") is None:
        raise InputError(f"matrix {name} needs Biopython: {install('align')}")
    from Bio.Align import substitution_matrices

    known = substitution_matrices.load()
    if name.upper() not in known:
        raise InputError(f"matrix {name} is unknown: use one of {', '.join(sorted(known))}")
    return substitution_matrices.load(name.upper())


def _checked(letters: str, scores: np.ndarray) -> np.ndarray:
    """Check a matrix, and return it as int64 [A, A]."""
    if scores.shape != (len(letters),) * 2 or len(set(letters)) != len(letters):
        raise InputError(
            f"a matrix of shape {list(scores.shape)} does not fit its {len(letters)} row names "
            f"{letters}: give one distinct name per row"
        )
    if scores.dtype.kind not in "iuf" or not np.array_equal(scores, scores.round()):
        raise InputError(
            "the matrix must hold integers: multiply all scores and penalties by a factor"
        )
    if not np.array_equal(scores, scores.T):
        a, b = (letters[k] for k in np.argwhere(scores != scores.T)[0])
        raise InputError(
            f"the matrix must be symmetric, but the score of {a} and {b} is not that of {b} and {a}"
        )
    if np.abs(scores).max() >= 2**31:
        raise InputError(
            f"a score of {np.abs(scores).max():g} is too large for int32: use smaller scores"
        )
    return scores.astype(np.int64)
