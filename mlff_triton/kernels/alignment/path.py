"""The way back through the tables of alignments, of which only the edges of tiles were kept.

A lane follows one alignment from its end. It calculates the rows of the tile that it is in once
more, this time with how each cell is reached, four bits a cell, goes back through the tile, and
goes on with the next one. A tile is what a lane of the first pass did between two kept states.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.alignment.lanes import appended, columns_of, taken_apart
from mlff_triton.kernels.alignment.plan import LANES, Launch
from mlff_triton.kernels.alignment.reference.alignment import (
    DIAGONAL,
    LEFT,
    OPENS_LEFT,
    OPENS_UP,
    STOP,
    UP,
)
from mlff_triton.kernels.alignment.rows import NEVER
from mlff_triton.kernels.types.sequence_pairs import (
    DELETION,
    INSERTION,
    MATCH,
    MISMATCH,
    Free,
    Runs,
    places_of_runs,
)

CHUNK = 32  # steps of a tile, and no more than a pair with strips has lanes
_PAIRS = 32  # of a program, which waits for its longest

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
_STOPS = tl.constexpr(DIAGONAL | LEFT)  # a bit for each is set, or for none that goes up


class Mode(NamedTuple):
    """What the kernel is compiled for: see that of the first pass.

    It seeks the column of an end unless all alignments end in the last one.
    """

    width: int
    columns: int
    local: bool
    query_begin: bool
    target_begin: bool
    target_end: bool
    banded: bool
    seeks: bool
    packed: bool
    lanes: int
    chunk: int


class Numbers(NamedTuple):
    """Constants of the first pass, as numbers."""

    cost: tl.tensor
    extend: tl.tensor
    per_letter: tl.tensor
    lift: tl.tensor
    bias: tl.tensor
    open_left: tl.tensor
    open_top: tl.tensor
    left_slope: tl.tensor
    top_slope: tl.tensor
    band: tl.tensor


class Pair(NamedTuple):
    """What a lane follows an alignment of."""

    query: tl.tensor  # pointers to first letters
    target: tl.tensor
    m: tl.tensor  # letters of the target
    n: tl.tensor  # of the query
    pad_rows: tl.tensor  # before the query
    score: tl.tensor
    group: tl.tensor  # of pairs, in the first pass
    first_lane: tl.tensor  # of the pair in its program
    high: tl.tensor  # whether it is in the upper halves


class Tile(NamedTuple):
    """Where a tile is."""

    across: tl.tensor  # lanes before it, of all strips
    chunk: tl.tensor  # of steps
    row: tl.tensor  # letters of the query before it; rows of pads are left out
    column: tl.tensor  # letters of the target before it, negative for pads
    n_rows: tl.tensor  # to that of the alignment


class Walk(NamedTuple):
    """How far a lane has come."""

    i: tl.tensor  # letters of the query that are left
    j: tl.tensor  # of the target
    gap: tl.tensor  # the gap that has not begun yet
    current: tl.tensor  # operation of the current run
    count: tl.tensor  # and its length
    n_runs: tl.tensor  # that have been written


@triton.jit
def _half(x, high, MODE: tl.constexpr):
    PACKED: tl.constexpr = MODE.packed
    low, upper = taken_apart(x, PACKED)
    return tl.where(high, upper, low)


@triton.jit
def _with_operation(walk, operation, length, runs, active):
    """Add to the current run, or write that and begin another."""
    same = active & (operation == walk.current)
    other = active & (operation != walk.current)
    ended = other & (walk.count > 0)
    tl.store(runs - walk.n_runs, walk.count * 4 + walk.current, ended)
    n_runs = walk.n_runs + tl.where(ended, 1, 0)
    count = tl.where(same, walk.count + length, tl.where(other, length, walk.count))
    current = tl.where(active, operation, walk.current)
    return Walk(walk.i, walk.j, walk.gap, current, count, n_runs)


@triton.jit
def _border(letters, slope, opening, numbers, MODE: tl.constexpr):
    """Cells that have so many letters of one sequence before them, and none of the other."""
    x = numbers.bias + tl.where(letters > 0, letters * slope - opening, 0)
    return tl.where(letters <= numbers.band, x, NEVER) if MODE.banded else x


@triton.jit
def _tile_at(walk, sought, end_lane, active, pair, lanes, strips, MODE: tl.constexpr):
    """The tile that an alignment has reached."""
    pads = lanes * strips * MODE.width - pair.m
    across = tl.where(sought, end_lane, (walk.j - 1 + pads) // MODE.width)
    k = across % lanes
    chunk = (walk.i - 1 + pair.pad_rows + k) // MODE.chunk
    row = tl.maximum(chunk * MODE.chunk - k - pair.pad_rows, 0)
    column = across * MODE.width - pads
    return Tile(across, chunk, row, column, tl.where(active, walk.i - row, 0))


@triton.jit
def _first_cells(
    tile, pair, states_ptr, active, lanes, strips, max_steps, lift, MODE: tl.constexpr
):
    """Cells above a tile, and gaps below them: those before its first step."""
    PAIRS: tl.constexpr = tile.row.shape[0]
    k = tile.across % lanes
    task = (pair.group * strips + tile.across // lanes).to(tl.int64)
    state = (task * (max_steps // MODE.chunk) + tile.chunk) * MODE.lanes + pair.first_lane + k
    place = tl.arange(0, MODE.columns)[None, :]
    at = states_ptr + (state * (2 * MODE.columns))[:, None] + place
    there = active[:, None] & (place < MODE.width)
    h = _half(tl.load(at, there, other=0), pair.high[:, None], MODE) + lift
    f = _half(tl.load(at + MODE.columns, there, other=0), pair.high[:, None], MODE)
    return columns_of(h, PAIRS, MODE.columns), columns_of(f, PAIRS, MODE.columns)


@triton.jit
def _load_row(s, tile, pair, passed, MODE: tl.constexpr):
    """The letter of a row of a tile, and what the lane to the left passed on there."""
    live = s < tile.n_rows
    inner = live & (tile.across > 0)
    letter = tl.load(pair.query + tile.row + s, live, other=0).to(tl.int32)
    left = tl.load(passed + s * (2 * MODE.lanes), inner, other=0)
    return letter, left, tl.load(passed + s * (2 * MODE.lanes) + 1, inner, other=0)


@triton.jit
def _fill_tile(
    tile,
    pair,
    walk,
    active,
    letters_of_matrix,
    matrix_ptr,
    passed_ptr,
    states_ptr,
    moves,
    lanes,
    strips,
    max_steps,
    numbers,
    MODE: tl.constexpr,
):
    """Calculate the rows of a tile again, and write how cells are reached, eight a word.

    Returns
    -------
    found
        The first column of the last row, from 1, that is an end with the score; or 0.
    """
    PAIRS: tl.constexpr = tile.row.shape[0]
    WIDTH: tl.constexpr = MODE.width
    COLUMNS: tl.constexpr = MODE.columns
    WORDS: tl.constexpr = (WIDTH + 7) // 8
    none = tl.zeros([PAIRS], tl.int32)
    place = tl.arange(0, COLUMNS)[None, :]
    there = active[:, None] & (tile.column[:, None] + place >= 0) & (place < WIDTH)
    codes = tl.load((pair.target + tile.column)[:, None] + place, there, other=0).to(tl.int32)
    codes = tl.where(there, codes, letters_of_matrix) * letters_of_matrix
    h, f = _first_cells(
        tile, pair, states_ptr, active, lanes, strips, max_steps, numbers.lift, MODE
    )

    # What the lane to the left passed on, step by step; it is loaded a step before it is used.
    inner = tile.across > 0
    left_lane = tl.where(inner, tile.across - 1, 0)
    task = (pair.group * strips + left_lane // lanes).to(tl.int64)
    left_k = left_lane % lanes
    passed = passed_ptr + task * max_steps * (2 * MODE.lanes) + 2 * (pair.first_lane + left_k)
    passed += (tile.row + pair.pad_rows + left_k) * (2 * MODE.lanes)
    d = tl.load(passed - 2 * MODE.lanes, active & inner & (tile.row > 0), other=0)
    d = _half(d, pair.high, MODE) + numbers.lift
    outside = _border(tile.row, numbers.left_slope, numbers.open_left, numbers, MODE)
    corner = tl.maximum(tile.column, 0)
    corner = _border(corner, numbers.top_slope, numbers.open_top, numbers, MODE)
    d = tl.where(tile.row > 0, tl.where(inner, d, outside), corner)

    found = none
    letter, left, e = _load_row(0, tile, pair, passed, MODE)
    for s in range(tl.max(tile.n_rows, 0)):
        row = tile.row + s + 1  # letters of the query
        scores = columns_of(tl.load(matrix_ptr + codes + letter[:, None]), PAIRS, COLUMNS)
        left = _half(left, pair.high, MODE) + numbers.lift
        e = _half(e, pair.high, MODE)
        letter, next_left, next_e = _load_row(s + 1, tile, pair, passed, MODE)
        outside = _border(row, numbers.left_slope, numbers.open_left, numbers, MODE)
        left = tl.where(inner, left, outside)
        e = tl.where(inner, e, outside if MODE.local else outside - numbers.cost)
        x = left
        next_h = ()
        next_f = ()
        word = none
        for w in tl.static_range(WIDTH):
            column = tile.column + w + 1  # letters of the target
            opened = x - numbers.cost
            diagonal = d + scores[w]
            x = tl.maximum(tl.maximum(diagonal, e), f[w])
            if MODE.banded:
                x = tl.where(tl.abs(row - tl.maximum(column, 0)) <= numbers.band, x, NEVER)
            move = tl.where(x == diagonal, _DIAGONAL, 0) | tl.where(x == e, _LEFT, 0)
            if MODE.local:
                move = tl.where(x == diagonal, _DIAGONAL, move)
                move = tl.where(x == numbers.bias, _STOPS, move)
            move |= tl.where(e == opened, _OPENS_LEFT, 0)
            move |= tl.where(f[w] == h[w] - numbers.cost, _OPENS_UP, 0)
            word |= move << (4 * (w % 8))
            if w % 8 == 7 or w == WIDTH - 1:
                tl.store(moves + (s * WORDS + w // 8) * PAIRS, word)
                word = none
            if MODE.seeks:
                total = x - numbers.bias - numbers.per_letter * (walk.i + column)
                ends = (s == tile.n_rows - 1) & (total == pair.score) & (column > 0)
                if not MODE.local:
                    ends &= (column == pair.m) | (MODE.target_end & (walk.i == pair.n))
                found = tl.where(ends & (found == 0), w + 1, found)
            d = h[w]
            below = f[w]
            if MODE.local:
                e = tl.maximum(e - numbers.extend, numbers.bias)
                below -= numbers.extend
            e = tl.maximum(x - numbers.cost, e)
            next_h = appended(next_h, x)
            next_f = appended(next_f, tl.maximum(x - numbers.cost, below))
        for w in tl.static_range(WIDTH, COLUMNS):
            next_h = appended(next_h, h[w])
            next_f = appended(next_f, f[w])
        h = next_h
        f = next_f
        d = left
        left = next_left
        e = next_e
    return found


@triton.jit
def _back_through(tile, pair, walk, active, runs, moves, MODE: tl.constexpr):
    """Follow moves to where the tile ends, and say whether the alignment goes on there."""
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
            step = tl.where((move & 3) == _STOPS, _STOP, step)
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
    """What is left has letters of one sequence alone."""
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


@triton.jit(do_not_specialize=["n_pairs", "lanes", "strips", "max_steps", "max_runs"])
def _alignment_path_kernel(
    letters_ptr,
    query_start_ptr,
    query_length_ptr,
    target_start_ptr,
    target_length_ptr,
    matrix_ptr,
    passed_ptr,
    states_ptr,
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
    cost,
    extend,
    per_letter,
    lift,
    bias,
    open_left,
    open_top,
    left_slope,
    top_slope,
    band,
    MODE: tl.constexpr,
    PAIRS: tl.constexpr,
):
    numbers = Numbers(
        cost, extend, per_letter, lift, bias, open_left, open_top, left_slope, top_slope, band
    )
    me = tl.arange(0, PAIRS)
    position = tl.program_id(0) * PAIRS + me
    chosen = position < n_pairs
    position = tl.minimum(position, n_pairs - 1)
    slot = position // (1 + MODE.packed)
    group = slot // (MODE.lanes // lanes)
    first_of_group = group * (MODE.lanes // lanes) * (1 + MODE.packed)  # with the longest query
    n = tl.load(query_length_ptr + position).to(tl.int32)
    pair = Pair(
        letters_ptr + tl.load(query_start_ptr + position),
        letters_ptr + tl.load(target_start_ptr + position),
        tl.load(target_length_ptr + position).to(tl.int32),
        n,
        tl.load(query_length_ptr + first_of_group).to(tl.int32) - n,
        tl.load(score_ptr + position),
        group,
        slot % (MODE.lanes // lanes) * lanes,
        position % 2 == 1,
    )
    runs = runs_ptr + (position + 1).to(tl.int64) * max_runs - 1  # the last comes first
    moves = moves_ptr + tl.program_id(0).to(tl.int64) * (
        MODE.chunk * ((MODE.width + 7) // 8) * PAIRS
    )
    moves += me

    end_lane = tl.load(lane_ptr + position)
    sought = end_lane >= 0  # the column of the end is still to be found
    none = tl.zeros([PAIRS], tl.int32)
    i = tl.load(end_ptr + 2 * position)
    j = tl.load(end_ptr + 2 * position + 1)
    walk = Walk(i, j, none + _STOP, none, none, none)
    active = chosen & (i > 0) & ((j > 0) | sought)
    while tl.max(active.to(tl.int32), 0) > 0:
        tile = _tile_at(walk, sought, end_lane, active, pair, lanes, strips, MODE)
        found = _fill_tile(
            tile,
            pair,
            walk,
            active,
            n_letters,
            matrix_ptr,
            passed_ptr,
            states_ptr,
            moves,
            lanes,
            strips,
            max_steps,
            numbers,
            MODE,
        )
        j = tl.where(sought, tile.column + found, walk.j)
        tl.store(end_ptr + 2 * position + 1, j, sought & chosen)
        sought &= False
        walk = Walk(walk.i, j, walk.gap, walk.current, walk.count, walk.n_runs)
        tl.debug_barrier()
        walk, active = _back_through(tile, pair, walk, active, runs, moves, MODE)
        tl.debug_barrier()

    walk = _along_borders(walk, runs, chosen, MODE)
    ended = chosen & (walk.count > 0)
    tl.store(runs - walk.n_runs, walk.count * 4 + walk.current, ended)
    tl.store(n_runs_ptr + position, walk.n_runs + tl.where(ended, 1, 0), chosen)
    tl.store(begin_ptr + 2 * position, walk.i, chosen)
    tl.store(begin_ptr + 2 * position + 1, walk.j, chosen)


class Kept(NamedTuple):
    """What is kept of a launch, from which any tile can be calculated again.

    Attributes
    ----------
    passed : int32 [tasks, steps, LANES, 2]
        What each lane passes on at each step: its last cell, less the lift, and the gap to its
        right.
    states : int32 [tasks, steps / CHUNK, LANES, 2, columns]
        Cells, less the lift, and gaps below them, before the first step of each chunk.
    """

    passed: Tensor
    states: Tensor


class Paths(NamedTuple):
    """The alignments of n pairs.

    Attributes
    ----------
    begin, end : int32 [n, 2]
        Letters of query and target before them, and before their ends.
    first, n_runs : int64 [n]
        Which runs of operations are theirs.
    runs : int32 [R]
        How often an operation is repeated, times four, plus the operation; or nothing.
    """

    begin: Tensor
    end: Tensor
    first: Tensor
    n_runs: Tensor
    runs: Tensor

    @classmethod
    def joined(cls, parts: list[Paths]) -> Paths:
        """All of them, one after the other."""
        if len(parts) == 1:
            return parts[0]
        sizes = [len(part.runs) for part in parts]
        offsets = accumulate(sizes, initial=0)
        first = [part.first + offset for part, offset in zip(parts, offsets, strict=False)]
        begin, end, _, n_runs, runs = map(torch.cat, zip(*parts, strict=True))
        return cls(begin, end, torch.cat(first), n_runs, runs)

    def in_order(self, order: Tensor) -> Paths:
        """The same alignments, of which the k-th is that of pair ``order[k]``."""
        begin, end, first, n_runs = (
            torch.empty_like(x).index_copy_(0, order, x) for x in self[:-1]
        )
        return Paths(begin, end, first, n_runs, self.runs)

    def dense(self) -> Paths:
        """The same with nothing between their runs, which come in their order."""
        start, places = places_of_runs(self.first, self.n_runs)
        return self._replace(first=start[:-1], runs=self.runs[places])

    def unpacked(self) -> Runs:
        """Their operations."""
        start, places = places_of_runs(self.first, self.n_runs)
        runs = self.runs[places]
        return Runs(start, (runs & 3).byte(), runs >> 2)


def paths(
    launch: Launch,
    matrix: Tensor,
    free: Free,
    band: int | None,
    kept: Kept,
    score: Tensor,
    end: Tensor,
    lane: Tensor,
) -> Paths:
    """Follow the alignments of a launch from their ends.

    Parameters
    ----------
    matrix : int32 [A + 1, A]
        What letters of the target, and pads, score against letters of the query.
    score : int32 [n]
        Of the alignments, in the order of the launch.
    end : int32 [n, 2]
        Letters of query and target before their ends; those of the target are found if there is a
        lane.
    lane : int32 [n]
        Whose columns the end is in, or -1.
    """
    n, numbers, device = launch.n, launch.numbers, score.device
    runs = torch.empty(n, launch.most_runs, dtype=torch.int32, device=device)
    n_runs = torch.zeros(n, dtype=torch.int32, device=device)
    begin = torch.empty_like(end)
    grid = -(-n // _PAIRS)
    words = -(-launch.width // 8)
    with torch.cuda.device_of(score):
        _alignment_path_kernel[(grid,)](
            *launch.pairs,
            matrix,
            *kept,
            torch.empty(grid * CHUNK * words * _PAIRS, dtype=torch.int32, device=device),
            score,
            end,
            lane,
            begin,
            runs,
            n_runs,
            n,
            numbers.letters,
            launch.lanes,
            launch.strips,
            kept.passed.shape[1],
            launch.most_runs,
            *numbers.constants,
            numbers.left_slope,
            numbers.top_slope,
            band or 0,
            MODE=Mode(
                width=launch.width,
                columns=launch.columns,
                local=free.anywhere,
                query_begin=free.query_begin,
                target_begin=free.target_begin,
                target_end=free.target_end,
                banded=band is not None,
                seeks=free.anywhere or free.query_end or free.target_end,
                packed=launch.packed,
                lanes=LANES,
                chunk=CHUNK,
            ),
            PAIRS=_PAIRS,
            num_warps=1,
        )
    past = torch.arange(1, n + 1, device=device) * launch.most_runs
    return Paths(begin, end, past - n_runs, n_runs.long(), runs.flatten())
