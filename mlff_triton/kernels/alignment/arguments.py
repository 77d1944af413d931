"""Arguments shared by the two alignment kernels, the sweep and the traceback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True, kw_only=True)
class Mode:
    """Compile-time options of both kernels.

    Attributes
    ----------
    width, columns : int
        Columns per lane, and the same number rounded up to a power of two.
    packed : bool
        If True, each lane holds two pairs.
    local, query_begin, target_end : bool
        Ends without gap penalties: see `Free`.
    banded : bool
        If True, cells outside the band are excluded.
    lanes : int
        Lanes per program.
    chunk : int
        Steps between two saved states, and between two checks of the previous strip's progress.
    """

    width: int
    columns: int
    packed: bool
    local: bool
    query_begin: bool
    target_end: bool
    banded: bool
    lanes: int
    chunk: int


@dataclass(frozen=True, kw_only=True)
class SweepMode(Mode):
    """Compile-time options of the sweep.

    Attributes
    ----------
    source : int
        Source of substitution scores: `TABLE`, `PROFILE` or `MATRIX`.
    linear : bool
        If True, opening a gap costs no more than extending it.
    query_end : bool
        Ends without gap penalties: see `Free`. (A free beginning of the target changes only the
        row above the first one.)
    strips : bool
        If True, the target is split into several strips.
    keep : bool
        If True, checkpoints are saved for the traceback.
    target : str
        Instruction set that kernels may name: see `lanes.target`.
    """

    source: int
    linear: bool
    query_end: bool
    strips: bool
    keep: bool
    target: str


@dataclass(frozen=True, kw_only=True)
class TracebackMode(Mode):
    """Compile-time options of the traceback.

    Attributes
    ----------
    target_begin : bool
        Ends without gap penalties: see `Free`.
    searches : bool
        If True, the column of an alignment's end has to be searched for. Otherwise every
        alignment ends in the last column.
    """

    target_begin: bool
    searches: bool


class Constants(NamedTuple):
    """Integers that define the score of a cell, as the kernels compute it.

    A cell holds its score plus `bias` plus `per_letter` for each residue or base before it.

    Attributes
    ----------
    cost, extend : int
        Costs of opening and of extending a gap, after `per_letter` is accounted for.
    per_letter : int
        Offset that each residue or base before a cell adds to it.
    lift : int
        Offset of the substitution scores that keeps all of them nonnegative.
    bias : int
        Offset of the cells that keeps all of them nonnegative.
    open_left, open_top : int
        Gap opening cost of the cells left of the first column and above the first row.
    left_slope, top_slope : int
        Change of the same cells per row and per column. The sweep does not use `left_slope`, and
        gets None, for which Triton compiles no kernel parameter.
    band : int
        Largest ``abs(i - j)`` of a cell in the band; 0 without a band.
    """

    cost: int
    extend: int
    per_letter: int
    lift: int
    bias: int
    open_left: int
    open_top: int
    left_slope: int | None
    top_slope: int
    band: int = 0


class Ends(NamedTuple):
    """Ends of the best alignments in each strip, int32 [strips, n].

    Attributes
    ----------
    score : Tensor
        Score of the alignment.
    row : Tensor
        Residues or bases of the query before the end.
    lane : Tensor
        Lane whose columns contain the end, counted through all strips.
    """

    score: torch.Tensor
    row: torch.Tensor
    lane: torch.Tensor


class Checkpoints(NamedTuple):
    """Values saved by the sweep, from which the traceback recomputes any tile.

    Attributes
    ----------
    passed : int32 [tasks, steps, LANES, 2]
        Values that each lane passes to the right at each step: the cell in its last column, less
        the lift, and the gap that leaves this cell to the right.
    states : int32 [tasks, steps / chunk, LANES, 2, columns]
        Cells, less the lift, and the gaps that leave them downward, before the first step of each
        chunk.
    """

    passed: torch.Tensor
    states: torch.Tensor
