"""What letters score against one another, and what gaps cost."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.types.sequence_pairs import Gaps

BASES = "ACGT"
ANY_BASE = "N"
AMINO_ACIDS = "ARNDCQEGHILKMFPSTWYV"
ALPHABETS = {  # of matrices that come without letters, by their size
    4: BASES,
    5: BASES + ANY_BASE,
    20: AMINO_ACIDS,
    24: AMINO_ACIDS + "BZX*",
}
MATCH, MISMATCH = 2, -3  # by default


class Scoring(NamedTuple):
    """A substitution matrix with affine gap costs.

    Attributes
    ----------
    letters : str
        In the order of the matrix, upper case.
    matrix : int64 [A, A]
        Symmetric; on the CPU.
    gaps : Gaps
        A gap of k letters costs ``open + (k - 1) extend``.
    """

    letters: str
    matrix: Tensor
    gaps: Gaps

    @classmethod
    def of(cls, matrix: Any, match: int, mismatch: int, gap_open: int, gap_extend: int) -> Scoring:
        """Check what `align` was given, and look it up.

        Raises
        ------
        InputError
            If it is no symmetric matrix of integers, or gaps cost less than nothing.
        """
        gaps = Gaps(_integer("gap_open", gap_open), _integer("gap_extend", gap_extend))
        for name, cost in (("gap_open", gaps.open), ("gap_extend", gaps.extend)):
            if cost < 0:
                raise InputError(f"{name}={cost} is a cost, not a score: did you mean {-cost}?")
        if gaps.extend > gaps.open:
            raise InputError(
                f"gap_extend={gaps.extend} is more than gap_open={gaps.open}: the first letter of "
                "a gap costs gap_open, and each further one gap_extend"
            )
        if matrix is None:
            letters, scores = _of_bases(_integer("match", match), _integer("mismatch", mismatch))
        elif (match, mismatch) == (MATCH, MISMATCH):
            letters, scores = _read(matrix)
        else:
            raise InputError("give match and mismatch, or a matrix, but not both")
        return cls(letters, torch.from_numpy(_checked(letters, scores)), gaps)


def _integer(name: str, value: Any) -> int:
    is_whole = isinstance(value, float) and value.is_integer()  # as Biopython has its numbers
    try:
        found = int(value) if is_whole else index(value)
    except TypeError:
        raise InputError(f"{name}={value!r} is no integer: multiply all scores and costs") from None
    if abs(found) >= 2**31:
        raise InputError(f"{name}={value!r} is too large for int32")
    return found


def _of_bases(match: int, mismatch: int) -> tuple[str, np.ndarray]:
    """Bases, and N, which matches nothing: it says nothing of the base."""
    if mismatch > match:
        raise InputError(
            f"mismatch={mismatch} is a score, not a cost, and cannot be above match={match}"
        )
    scores = np.full((5, 5), mismatch)
    np.fill_diagonal(scores[:4, :4], match)
    return BASES + ANY_BASE, scores


def _read(matrix: Any) -> tuple[str, np.ndarray]:
    if isinstance(matrix, str):
        matrix = _named(matrix)
    letters = getattr(matrix, "alphabet", None)  # as Biopython's arrays have it
    if letters is None and hasattr(matrix, "columns"):  # as pandas' tables have it
        letters = "".join(matrix.columns)
    try:
        scores = np.asarray(matrix)
    except ValueError:
        raise InputError("a matrix is square, but its rows are of different lengths") from None
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
        raise InputError(f"a matrix is square, not {list(scores.shape)}")
    if letters is None and len(scores) not in ALPHABETS:
        raise InputError(
            f"a matrix of {len(scores)} letters must say which: take Biopython's Array, or 4 for "
            f"{BASES}, 5 for {ALPHABETS[5]}, 20 for {AMINO_ACIDS}, 24 for {ALPHABETS[24]}"
        )
    return "".join(letters or ALPHABETS[len(scores)]).upper(), scores


@cache
def _named(name: str) -> Any:
    if find_spec("Bio") is None:
        raise InputError(f"{name} is looked up by Biopython: pip install 'mlff-triton[align]'")
    from Bio.Align import substitution_matrices

    known = substitution_matrices.load()
    if name.upper() not in known:
        raise InputError(f"there is no matrix {name}; there are {', '.join(sorted(known))}")
    return substitution_matrices.load(name.upper())


def _checked(letters: str, scores: np.ndarray) -> np.ndarray:
    """Scores as int64 [A, A]."""
    if scores.shape != (len(letters),) * 2 or len(set(letters)) != len(letters):
        raise InputError(f"a matrix {list(scores.shape)} cannot be one of the letters {letters}")
    if scores.dtype.kind not in "iuf" or not np.array_equal(scores, scores.round()):
        raise InputError("a matrix must hold integers: multiply all scores and costs")
    if not np.array_equal(scores, scores.T):
        a, b = (letters[k] for k in np.argwhere(scores != scores.T)[0])
        raise InputError(f"the matrix is not symmetric: {a} against {b} is not {b} against {a}")
    if np.abs(scores).max() >= 2**31:
        raise InputError(f"a score of {np.abs(scores).max():g} is too large for int32")
    return scores.astype(np.int64)
