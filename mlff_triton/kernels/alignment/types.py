"""Pairs of sequences to align, gap penalties and free ends, and the alignments found."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PAD = 64  # bytes before and after all sequences that may be read and have no meaning

MATCH, MISMATCH, INSERTION, DELETION = range(4)  # CIGAR operations
LETTERS_OF_OPERATIONS = "=XID"


class Free(NamedTuple):
    """Ends of sequences without gap penalties.

    Attributes
    ----------
    query_begin, query_end : bool
        If True, residues or bases at this end of the query may stay unaligned at no cost.
    target_begin, target_end : bool
        The same for the target.
    anywhere : bool
        If True, the alignment is local: both ends of both sequences may stay unaligned, and the
        score is never negative.
    """

    query_begin: bool = False
    query_end: bool = False
    target_begin: bool = False
    target_end: bool = False
    anywhere: bool = False


GLOBAL = Free()


class Gaps(NamedTuple):
    """Affine gap penalties: a gap of length k costs ``open + (k - 1) extend``.

    They satisfy ``0 <= extend <= open``.
    """

    open: int
    extend: int


class Pairs(NamedTuple):
    """n pairs of sequences on one device. Several sequences may share memory.

    Attributes
    ----------
    letters : uint8 [S]
        Codes of the residues or bases of all sequences, that is, their rows in the substitution
        matrix. `PAD` unused bytes precede and follow them.
    query_start, query_length, target_start, target_length : int64 [n]
        A sequence is ``letters[start : start + length]``.
    """

    letters: Tensor
    query_start: Tensor
    query_length: Tensor
    target_start: Tensor
    target_length: Tensor


class Runs(NamedTuple):
    """CIGAR operations of n alignments, in run-length encoding.

    Attributes
    ----------
    start : int64 [n + 1]
        The runs of pair p are ``start[p] : start[p + 1]``.
    operation : uint8 [R]
        `MATCH` (equal residues or bases), `MISMATCH`, `INSERTION` (in the query only) or `DELETION`
        (in the target only), as in SAM if the query is the read and the target the reference.
    length : int32 [R]
        Length of each run.
    """

    start: Tensor
    operation: Tensor
    length: Tensor


class Aligned(NamedTuple):
    """Best alignments of n pairs.

    Attributes
    ----------
    score : int32 [n]
        Sum of the substitution scores, less the gap penalties.
    begin, end : int32 [n, 2] or None
        Positions of query and target before the alignment, and before its end. None without a
        traceback.
    runs : Runs or None
        CIGAR operations. None without a traceback.
    """

    score: Tensor
    begin: Tensor | None
    end: Tensor | None
    runs: Runs | None


def join_runs(parts: list[Runs]) -> Runs:
    """Concatenate the alignments of several parts."""
    start = sums_before(torch.cat([part.start.diff() for part in parts]))
    operation = torch.cat([part.operation for part in parts])
    return Runs(start, operation, torch.cat([part.length for part in parts]))


def arrange_runs(runs: Runs, order: Tensor) -> Runs:
    """Reorder alignments so that the new pair p is the old pair ``order[p]``."""
    start, indices = locate_runs(runs.start[order], runs.start.diff()[order])
    return Runs(start, runs.operation[indices], runs.length[indices])


def locate_runs(first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices that bring the runs of alignments together in order.

    Parameters
    ----------
    first, count : int64 [n]
        Index of the first run of each alignment, and number of its runs.

    Returns
    -------
    start : int64 [n + 1]
        As in `Runs`.
    indices : int64 [R]
        Previous index of each run.
    """
    start = sums_before(count)
    indices = (first - start[:-1]).repeat_interleave(count)
    return start, indices.add_(torch.arange(len(indices), device=indices.device))


def sums_before(x: Tensor) -> Tensor:
    """Return the exclusive prefix sums of x and its total, int64 [n + 1]."""
    return torch.cat([x.new_zeros(1, dtype=torch.int64), x.cumsum(0, dtype=torch.int64)])
