"""Traceback: a kernel that follows alignments through tables of which only edges are stored.

A lane follows one alignment from its end. It recomputes the rows of the tile that it has reached,
goes back through the tile, and continues with the next one.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.alignment.arguments import Checkpoints, TracebackMode
from mlff_triton.kernels.alignment.plan import LANES, Bucket
from mlff_triton.kernels.alignment.reference.alignment import (
    DIAGONAL,
    LEFT,
    OPENS_LEFT,
    OPENS_UP,
    STOP,
    UP,
)
from mlff_triton.kernels.alignment.tiles import STOPS, Layout, Pair, Walk, fill_tile, find_tile
from mlff_triton.kernels.alignment.types import (
    DELETION,
    INSERTION,
    MATCH,
    MISMATCH,
    Free,
    Runs,
    locate_runs,
)

_PAIRS = 32  # per program, which takes as long as its longest alignment

_STOP = tl.constexpr(STOP)
_DIAGONAL = tl.constexpr(DIAGONAL)
_LEFT = tl.constexpr(LEFT)
_UP = tl.constexpr(UP)
_OPENS_LEFT = tl.constexpr(OPENS_LEFT)
_OPENS_UP = tl.constexpr(OPENS_UP)
_MATCH = tl.constexpr(MATCH)
_MISMATCH = tl.constexpr(MISMATCH)
_INSERTION = tl.constexpr(INSERTION)
_DELETION = tl.constexpr(DELETION)


@triton.jit
def _load_pair(pairs, score_ptr, position, lanes, MODE: tl.constexpr):
    """Load the pair at each position of the bucket."""
    slot = position // (1 + MODE.packed)
    group = slot // (MODE.lanes // lanes)
    first_of_group = group * (MODE.lanes // lanes) * (1 + MODE.packed)  # with the longest query
    n = tl.load(pairs.query_length + position).to(tl.int32)
    return Pair(
        pairs.letters + tl.load(pairs.query_start + position),
        pairs.letters + tl.load(pairs.target_start + position),
        tl.load(pairs.target_length + position).to(tl.int32),
        n,
        tl.load(pairs.query_length + first_of_group).to(tl.int32) - n,
        tl.load(score_ptr + position),
        group,
        slot % (MODE.lanes // lanes) * lanes,
        position % 2 == 1,
    )


@triton.jit
def _with_operation(walk, operation, length, runs, active):
    """Extend the current run, or store it and begin another."""
    same = active & (operation == walk.current)
    other = active & (operation != walk.current)
    ended = other & (walk.count > 0)
    tl.store(runs - walk.n_runs, walk.count * 4 + walk.current, ended)
    n_runs = walk.n_runs + tl.where(ended, 1, 0)
    count = tl.where(same, walk.count + length, tl.where(other, length, walk.count))
    current = tl.where(active, operation, walk.current)
    return Walk(walk.i, walk.j, walk.gap, current, count, n_runs)


@triton.jit
def _back_through(tile, pair, walk, active, runs, moves, MODE: tl.constexpr):
    """Follow the moves through a tile. Alignments that continue beyond it stay active."""
    PAIRS: tl.constexpr = tile.row.shape[0]
    WORDS: tl.constexpr = (MODE.width + 7) // 8
    within = active
    while tl.max(within.to(tl.int32), 0) > 0:
        w = walk.j - 1 - tile.column
        at = ((walk.i - 1 - tile.row) * WORDS + w // 8) * PAIRS
        move = (tl.load(moves + at, within, other=0) >> (4 * (w % 8))) & 15
        step = _UP + 0 * move
        step = tl.where((move & _LEFT) > 0, _LEFT, step)
        step = tl.where((move & _DIAGONAL) > 0, _DIAGONAL, step)
        if MODE.local:
            step = tl.where((move & 3) == STOPS, _STOP, step)
        step = tl.where(walk.gap == _STOP, step, walk.gap)
        active &= ~within | (step != _STOP)
        within &= step != _STOP
        diagonal = step == _DIAGONAL
        opens = (move & tl.where(step == _LEFT, _OPENS_LEFT, _OPENS_UP)) > 0
        a = tl.load(pair.query + walk.i - 1, within, other=0)
        b = tl.load(pair.target + walk.j - 1, within, other=0)
        operation = tl.where(step == _LEFT, _DELETION, _INSERTION)
        operation = tl.where(diagonal, tl.where(a == b, _MATCH, _MISMATCH), operation)
        walk = _with_operation(walk, operation, 1, runs, within)
        gap = tl.where(within, tl.where(opens | diagonal, _STOP, step), walk.gap)
        i = walk.i - tl.where(within & (step != _LEFT), 1, 0)
        j = walk.j - tl.where(within & (step != _UP), 1, 0)
        walk = Walk(i, j, gap, walk.current, walk.count, walk.n_runs)
        active &= (i > 0) & (j > 0)
        within &= active & (j > tile.column) & (i > tile.row)
    return walk, active


@triton.jit
def _along_borders(walk, runs, chosen, MODE: tl.constexpr):
    """Add the rest of an alignment, where only one sequence has residues or bases left."""
    i = walk.i
    j = walk.j
    if not (MODE.local or MODE.query_begin):
        rest = chosen & (i > 0) & (j == 0)
        walk = _with_operation(walk, _INSERTION + 0 * i, i, runs, rest)
        i = tl.where(rest, 0, i)
    if not (MODE.local or MODE.target_begin):
        rest = chosen & (j > 0) & (i == 0)
        walk = _with_operation(walk, _DELETION + 0 * j, j, runs, rest)
        j = tl.where(rest, 0, j)
    return Walk(i, j, walk.gap, walk.current, walk.count, walk.n_runs)


@triton.jit
def _finish(walk, runs, position, chosen, begin_ptr, n_runs_ptr):
    """Store the last run, the number of runs, and the beginning of each alignment."""
    ended = chosen & (walk.count > 0)
    tl.store(runs - walk.n_runs, walk.count * 4 + walk.current, ended)
    tl.store(n_runs_ptr + position, walk.n_runs + tl.where(ended, 1, 0), chosen)
    tl.store(begin_ptr + 2 * position, walk.i, chosen)
    tl.store(begin_ptr + 2 * position + 1, walk.j, chosen)


@triton.jit(do_not_specialize=["n_pairs", "lanes", "strips", "max_steps", "max_runs"])
def _alignment_traceback_kernel(
    pairs,
    matrix_ptr,
    checkpoints,
    moves_ptr,
    score_ptr,
    end_ptr,
    lane_ptr,
    begin_ptr,
    runs_ptr,
    n_runs_ptr,
    n_pairs,
    n_letters,
    lanes,
    strips,
    max_steps,
    max_runs,
    constants,
    MODE: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Trace the alignments of a bucket's pairs from their ends to their beginnings.

    Parameters
    ----------
    pairs : Pairs
        Sequences of the bucket, in the order of the sweep.
    matrix_ptr : int32 [A + 1, A]
        Scores of the target's residues or bases, and of padding, against those of the query.
    checkpoints : Checkpoints
        Values saved by the sweep.
    moves_ptr : int32 [grid, chunk, ceil(width / 8), PAIRS]
        Scratch memory for the moves of one tile per lane.
    score_ptr : int32 [n]
        Scores of the alignments.
    end_ptr : int32 [n, 2]
        Ends of the alignments in query and target. The target's end is written where it is
        searched for.
    lane_ptr : int32 [n]
        Lane whose columns contain the end, if it is searched for; otherwise -1.
    begin_ptr : int32 [n, 2]
        Written: beginnings of the alignments in query and target.
    runs_ptr : int32 [n, max_runs]
        Written from the end of each row: lengths of runs, times four, plus their operations.
    n_runs_ptr : int32 [n]
        Written: runs of each alignment.
    n_pairs, n_letters, lanes, strips : int
        Numbers of pairs and of symbols in the alphabet; lanes per pair and strips of the sweep.
    max_steps, max_runs : int
        Sizes of `Checkpoints.passed` and of `runs_ptr`.
    constants : Constants
        Gap penalties and offsets of the sweep.
    MODE : TracebackMode
        Compile-time options.
    PAIRS : int
        Pairs per program, one per lane.

    Notes
    -----
    The grid is ``[ceil(n_pairs / PAIRS)]``, programs of one warp.
    """
    layout = Layout(lanes, strips, max_steps)
    lane = tl.arange(0, PAIRS)
    position = tl.program_id(0) * PAIRS + lane
    chosen = position < n_pairs
    position = tl.minimum(position, n_pairs - 1)
    pair = _load_pair(pairs, score_ptr, position, lanes, MODE)
    runs = runs_ptr + (position + 1).to(tl.int64) * max_runs - 1  # the last run comes first
    moves = moves_ptr + tl.program_id(0).to(tl.int64) * (
        MODE.chunk * ((MODE.width + 7) // 8) * PAIRS
    )
    moves += lane

    end_lane = tl.load(lane_ptr + position)
    searched = end_lane >= 0  # the column of the end is not known yet
    none = tl.zeros([PAIRS], tl.int32)
    i = tl.load(end_ptr + 2 * position)
    j = tl.load(end_ptr + 2 * position + 1)
    walk = Walk(i, j, none + _STOP, none, none, none)
    active = chosen & (i > 0) & ((j > 0) | searched)
    while tl.max(active.to(tl.int32), 0) > 0:
        tile = find_tile(walk, searched, end_lane, active, pair, layout, MODE)
        found = fill_tile(
            tile,
            pair,
            walk,
            active,
            n_letters,
            matrix_ptr,
            checkpoints,
            moves,
            layout,
            constants,
            MODE,
        )
        j = tl.where(searched, tile.column + found, walk.j)
        tl.store(end_ptr + 2 * position + 1, j, searched & chosen)
        searched &= False
        walk = Walk(walk.i, j, walk.gap, walk.current, walk.count, walk.n_runs)
        tl.debug_barrier()
        walk, active = _back_through(tile, pair, walk, active, runs, moves, MODE)
        tl.debug_barrier()
    walk = _along_borders(walk, runs, chosen, MODE)
    _finish(walk, runs, position, chosen, begin_ptr, n_runs_ptr)


class Paths(NamedTuple):
    """Alignments of n pairs, with their runs in packed form.

    Attributes
    ----------
    begin, end : int32 [n, 2]
        Positions of query and target before the alignment and before its end.
    first, n_runs : int64 [n]
        Index of the first run of each alignment, and number of its runs.
    runs : int32 [R]
        Length of each run, times four, plus its operation. Entries that belong to no alignment are
        arbitrary.
    """

    begin: Tensor
    end: Tensor
    first: Tensor
    n_runs: Tensor
    runs: Tensor

    @classmethod
    def joined(cls, parts: list[Paths]) -> Paths:
        """Concatenate alignments."""
        if len(parts) == 1:
            return parts[0]
        sizes = [len(part.runs) for part in parts]
        offsets = accumulate(sizes, initial=0)
        first = [part.first + offset for part, offset in zip(parts, offsets, strict=False)]
        begin, end, _, n_runs, runs = map(torch.cat, zip(*parts, strict=True))
        return cls(begin, end, torch.cat(first), n_runs, runs)

    def in_order(self, order: Tensor) -> Paths:
        """Return the alignments in the order of pairs: the k-th is moved to pair ``order[k]``."""
        begin, end, first, n_runs = (
            torch.empty_like(x).index_copy_(0, order, x) for x in self[:-1]
        )
        return Paths(begin, end, first, n_runs, self.runs)

    def dense(self) -> Paths:
        """Return the same alignments with their runs in order and without gaps between them."""
        start, indices = locate_runs(self.first, self.n_runs)
        return self._replace(first=start[:-1], runs=self.runs[indices])

    def unpacked(self) -> Runs:
        """Return the runs of operations."""
        start, indices = locate_runs(self.first, self.n_runs)
        runs = self.runs[indices]
        return Runs(start, (runs & 3).byte(), runs >> 2)


def trace(
    bucket: Bucket,
    matrix: Tensor,
    free: Free,
    band: int | None,
    chunk: int,
    checkpoints: Checkpoints,
    score: Tensor,
    end: Tensor,
    lane: Tensor,
) -> Paths:
    """Launch the traceback for a bucket.

    Parameters
    ----------
    bucket : Bucket
        Pairs and their layout.
    matrix : int32 [A + 1, A]
        Scores of the target's residues or bases, and of padding, against those of the query.
    free, band, chunk
        The same values as for `sweep`.
    checkpoints : Checkpoints
        Values saved by the sweep.
    score : int32 [n]
        Scores of the alignments, in the order of the bucket.
    end : int32 [n, 2]
        Positions of query and target before the ends of the alignments. Those of the target are
        searched for, and written, where `lane` is not -1.
    lane : int32 [n]
        Lane whose columns contain the end, or -1.
    """
    n, scheme, device = bucket.n, bucket.scheme, score.device
    runs = torch.empty(n, bucket.max_runs, dtype=torch.int32, device=device)
    n_runs = torch.zeros(n, dtype=torch.int32, device=device)
    begin = torch.empty_like(end)
    grid = -(-n // _PAIRS)
    words = -(-bucket.width // 8)
    with torch.cuda.device_of(score):
        _alignment_traceback_kernel[(grid,)](
            bucket.pairs,
            matrix,
            checkpoints,
            torch.empty(grid * chunk * words * _PAIRS, dtype=torch.int32, device=device),
            score,
            end,
            lane,
            begin,
            runs,
            n_runs,
            n,
            scheme.letters,
            bucket.lanes,
            bucket.strips,
            checkpoints.passed.shape[1],
            bucket.max_runs,
            scheme.constants._replace(band=band or 0),
            MODE=TracebackMode(
                width=bucket.width,
                columns=bucket.columns,
                packed=bucket.packed,
                local=free.anywhere,
                query_begin=free.query_begin,
                target_end=free.target_end,
                banded=band is not None,
                lanes=LANES,
                chunk=chunk,
                target_begin=free.target_begin,
                searches=free.anywhere or free.query_end or free.target_end,
            ),
            PAIRS=_PAIRS,
            num_warps=1,
        )
    past = torch.arange(1, n + 1, device=device) * bucket.max_runs
    return Paths(begin, end, past - n_runs, n_runs.long(), runs.flatten())
