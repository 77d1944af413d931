"""Pairs of sequences to align, the scoring of gaps and ends, and the alignments found."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PAD = 64  # bytes before and after all letters that may be read, and mean nothing

MATCH, MISMATCH, INSERTION, DELETION = range(4)  # operations
LETTERS_OF_OPERATIONS = "=XID"


class Free(NamedTuple):
    """What costs nothing.

    Attributes
    ----------
    query_begin, query_end : bool
        Letters of the query before and after all that is aligned.
    target_begin, target_end : bool
        Likewise of the target.
    anywhere : bool
        Both, of both, wherever it pays: a local alignment, whose score is never negative.
    """

    query_begin: bool = False
    query_end: bool = False
    target_begin: bool = False
    target_end: bool = False
    anywhere: bool = False


GLOBAL = Free()


class Gaps(NamedTuple):
    """A gap of k letters costs ``open + (k - 1) extend``, with ``0 <= extend <= open``."""

    open: int
    extend: int


class Pairs(NamedTuple):
    """n pairs of sequences; several may share letters. All on one device.

    Attributes
    ----------
    letters : uint8 [S]
        Codes of the letters of all sequences, by their order in the matrix, with `PAD` unused bytes
        before and after.
    query_start, query_length, target_start, target_length : int64 [n]
        A sequence is ``letters[start : start + length]``.
    """

    letters: Tensor
    query_start: Tensor
    query_length: Tensor
    target_start: Tensor
    target_length: Tensor


class Runs(NamedTuple):
    """Operations of n alignments, from their first letters to their last.

    Attributes
    ----------
    start : int64 [n + 1]
        Runs of pair p are ``start[p] : start[p + 1]``.
    operation : uint8 [R]
        `MATCH` (equal letters), `MISMATCH`, `INSERTION` (letters of the query alone) or `DELETION`
        (of the target alone), as SAM has them of a read and its reference.
    length : int32 [R]
        How often it is repeated.
    """

    start: Tensor
    operation: Tensor
    length: Tensor


class Aligned(NamedTuple):
    """The best alignments of n pairs.

    Attributes
    ----------
    score : int32 [n]
        Sum of the scores of letters that face each other, less the costs of gaps.
    begin, end : int32 [n, 2] or None
        How many letters of query and target precede the alignment, and its end; None if only
        scores were asked for.
    runs : Runs or None
        Likewise.
    """

    score: Tensor
    begin: Tensor | None
    end: Tensor | None
    runs: Runs | None


def join_runs(parts: list[Runs]) -> Runs:
    """Runs of all parts, one after the other."""
    start = sums_before(torch.cat([part.start.diff() for part in parts]))
    operation = torch.cat([part.operation for part in parts])
    return Runs(start, operation, torch.cat([part.length for part in parts]))


def arrange_runs(runs: Runs, place: Tensor) -> Runs:
    """The same runs, those of pair p being what were those of ``place[p]``."""
    start, places = places_of_runs(runs.start[place], runs.start.diff()[place])
    return Runs(start, runs.operation[places], runs.length[places])


def places_of_runs(first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Bring the runs of alignments together, in their order.

    Parameters
    ----------
    first, count : int64 [n]
        Where those of each one begin, and how many there are.

    Returns
    -------
    start : int64 [n + 1]
        As in `Runs`.
    places : int64 [R]
        Where each run was.
    """
    start = sums_before(count)
    places = (first - start[:-1]).repeat_interleave(count)
    return start, places.add_(torch.arange(len(places), device=places.device))


def sums_before(x: Tensor) -> Tensor:
    """Sums int64 [n + 1] of all numbers that precede each place."""
    return torch.cat([x.new_zeros(1, dtype=torch.int64), x.cumsum(0, dtype=torch.int64)])
