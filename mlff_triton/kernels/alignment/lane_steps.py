"""Steps of the lanes that fill in alignment tables: the device functions of the sweep.

A step takes one row, that is, one residue or base of the query, through the columns of a lane.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from mlff_triton.kernels.alignment.lanes import (
    appended,
    columns_of,
    halves,
    joined,
    larger,
    larger_sum,
    pick,
    taken_apart,
)
from mlff_triton.kernels.alignment.plan import MATRIX, PROFILE, TABLE

NEVER = tl.constexpr(-(2**29))  # less than any score, and far from overflow
FROM_TABLE = tl.constexpr(TABLE)
FROM_MATRIX = tl.constexpr(MATRIX)
FROM_PROFILE = tl.constexpr(PROFILE)


class LaneConstants(NamedTuple):
    """`Constants` as lanes use them: repeated in both halves of a register if these are packed."""

    negative_cost: tl.tensor
    negative_extend: tl.tensor
    cost: tl.tensor
    extend: tl.tensor
    lift: tl.tensor
    floor: tl.tensor  # value of a cell with score 0
    open_left: tl.tensor
    per_letter: tl.tensor  # once, not repeated
    band: tl.tensor


class LanePosition(NamedTuple):
    """Position of each lane. The suffixes 0 and 1 refer to its two pairs."""

    rank: tl.tensor  # index of the lane within its pair
    lanes: tl.tensor  # lanes per pair
    strip: tl.tensor
    rows: tl.tensor  # length of the longest query in the program
    query0: tl.tensor  # pointers to the query's residue or base at step 0
    query1: tl.tensor
    row0: tl.tensor  # query positions before step 0; negative if the query starts later
    row1: tl.tensor
    column0: tl.tensor  # target positions before the lane; negative in the padding
    column1: tl.tensor
    scores0: tl.tensor  # scores of the lane's columns: see `_row`
    scores1: tl.tensor
    edge: tl.tensor  # pointers to the values that one strip passes to the next
    passed: tl.tensor  # pointers to `Checkpoints.passed`


class LaneState(NamedTuple):
    """Values that each lane holds for its columns."""

    h: tl.tensor  # cells of the last row, less the lift
    f: tl.tensor  # gaps that leave these cells downward
    d: tl.tensor  # the cell to the left of them, less the lift
    e: tl.tensor  # the gap that leaves the last column to the right
    best: tl.tensor  # the largest cell that may be an end
    best0: tl.tensor  # query positions before that cell
    best1: tl.tensor


@triton.jit
def _words(profile, letter, MODE: tl.constexpr):
    """Load the scores of a residue or base in each column of a lane, four per word."""
    PARTS: tl.constexpr = (MODE.columns + 15) // 16
    words = ()
    four = tl.arange(0, 4)
    for part in tl.static_range(PARTS):
        at = (letter * PARTS + part) * (MODE.lanes * 4)
        block = tl.load(profile[:, None] + at[:, None] + four[None, :])  # [LANES, 4]
        four_words = columns_of(block, MODE.lanes, 4)
        for w in tl.static_range(4):
            words = appended(words, four_words[w])
    return words


@triton.jit
def _row(
    letter0,
    letter1,
    e,
    row,
    live,
    position,
    state,
    constants,
    MODE: tl.constexpr,
    SLOW: tl.constexpr,
):
    """Compute one row of a lane.

    The scores in `position` depend on their source: for a table, a register of four bytes per
    column; for a profile, one pointer per lane; for a matrix, one pointer per column.

    Returns
    -------
    e, h, f
        The gap that leaves the last column to the right, the cells less the lift, and the gaps
        that leave them downward.
    best
        The largest cell if the alignment is local.
    """
    WIDTH: tl.constexpr = MODE.width
    PACKED: tl.constexpr = MODE.packed
    TARGET: tl.constexpr = MODE.target
    BYTES: tl.constexpr = 0xC480 if PACKED else 0x8880  # of the selector: see `pick`
    if MODE.source == FROM_PROFILE:
        words0 = _words(position.scores0, letter0, MODE)
        words1 = words0
        if PACKED:
            words1 = _words(position.scores1, letter1, MODE)
    selector = BYTES + (letter0 * 0x11 + letter1 * 0x1100 if PACKED else letter0 * 0x1111)
    d = state.d
    h = ()
    f = ()
    best = constants.floor
    for w in tl.static_range(WIDTH):
        if MODE.source == FROM_MATRIX:
            s = tl.load(position.scores0[w] + letter0)
        elif MODE.source == FROM_PROFILE:
            byte = BYTES + 0x1111 * (w % 4) + 0 * letter0
            s = pick(words0[w // 4], words1[w // 4], byte, TARGET)
        else:
            s = pick(position.scores0[w], position.scores1[w], selector, TARGET)
        x = larger(larger(d + s, e, PACKED, TARGET), state.f[w], PACKED, TARGET)
        if MODE.banded:
            column = tl.maximum(position.column0 + w + 1, 0)
            x = tl.where(tl.abs(row - column) <= constants.band, x, NEVER)
        d = state.h[w]
        cell = x - constants.lift
        below = state.f[w]
        if MODE.local:
            e = larger_sum(e, constants.negative_extend, constants.floor, PACKED, TARGET)
            below = below - constants.extend
            best = larger(best, x, PACKED, TARGET)
        if MODE.linear and not MODE.local:
            e = x
            below = x
        else:
            e = larger_sum(x, constants.negative_cost, e, PACKED, TARGET)
            below = larger_sum(x, constants.negative_cost, below, PACKED, TARGET)
        if SLOW:
            cell = (cell & live) | (state.h[w] & ~live)
            below = (below & live) | (state.f[w] & ~live)
        h = appended(h, cell)
        f = appended(f, below)
    return e, h, f, best


@triton.jit
def _left_border(t, position, constants, MODE: tl.constexpr):
    """Return the cell left of the first column, less the lift, and the gap that leaves it."""
    x = constants.floor - constants.open_left
    if MODE.query_begin:
        i0 = tl.maximum(position.row0 + t + 1, 0)
        i1 = tl.maximum(position.row1 + t + 1, 0)
        x += joined(i0 * constants.per_letter, i1 * constants.per_letter, MODE.packed)
    if MODE.banded:
        x = tl.where(position.row0 + t + 1 <= constants.band, x, NEVER)
    gap = x if MODE.local else x - constants.cost
    return x - constants.lift, gap


@triton.jit
def _query_codes(t, position, MODE: tl.constexpr, SLOW: tl.constexpr):
    """Load the codes of the query at step t; arbitrary before its start and after its end."""
    if SLOW:
        before_end = t < position.rows + position.rank
        letter0 = tl.load(position.query0 + t, (position.row0 + t >= 0) & before_end, other=0)
        letter1 = letter0
        if MODE.packed:
            letter1 = tl.load(position.query1 + t, (position.row1 + t >= 0) & before_end, other=0)
    else:
        letter0 = tl.load(position.query0 + t)
        letter1 = letter0
        if MODE.packed:
            letter1 = tl.load(position.query1 + t)
    return letter0.to(tl.int32), letter1.to(tl.int32)


@triton.jit
def _better_end(t, top, live, position, state, constants, MODE: tl.constexpr, SLOW: tl.constexpr):
    """Update the best end and its rows with the largest cell of the last row."""
    PACKED: tl.constexpr = MODE.packed
    TARGET: tl.constexpr = MODE.target
    if MODE.query_end:
        i0 = (position.row0 + t + 1) * constants.per_letter
        i1 = (position.row1 + t + 1) * constants.per_letter
        ramp = joined(-i0, -i1, PACKED)
        top = larger_sum(top, ramp, state.best, PACKED, TARGET)
    else:
        top = larger(top, state.best, PACKED, TARGET)
    if SLOW:
        top = (top & live) | (state.best & ~live)
    best0 = state.best0
    best1 = state.best1
    if MODE.keep:
        old0, old1 = taken_apart(state.best, PACKED)
        new0, new1 = taken_apart(top, PACKED)
        best0 = tl.where(new0 > old0, position.row0 + t + 1, best0)
        best1 = tl.where(new1 > old1, position.row1 + t + 1, best1)
    return top, best0, best1


@triton.jit
def _load_edge(begin, end, position):
    """Load the values that the previous strip passed on for the steps from begin to end."""
    rank = position.rank
    handed = (position.strip > 0) & (rank < end - begin) & (begin + rank < position.rows)
    at = position.edge + 2 * (begin + rank)
    cells = tl.load(at, handed, other=0, cache_modifier=".cg")
    gaps = tl.load(at + 1, handed, other=0, cache_modifier=".cg")
    return cells, gaps


@triton.jit
def _store_edge(t, h, e, position):
    """Store the values that the last lane passes to the next strip at step t."""
    passed = t - (position.lanes - 1)
    passes = (position.rank == position.lanes - 1) & (passed >= 0) & (passed < position.rows)
    tl.store(position.edge + 2 * passed, h, passes)
    tl.store(position.edge + 2 * passed + 1, e, passes)


@triton.jit
def _live(t, position, MODE: tl.constexpr):
    """Return a mask with all bits set for each pair that has a row at step t."""
    before_end = t < position.rows + position.rank
    live0 = tl.where((position.row0 + t >= 0) & before_end, -1, 0)
    live1 = tl.where((position.row1 + t >= 0) & before_end, -1, 0)
    return joined(live0, live1, MODE.packed)


@triton.jit
def take_steps(begin, end, position, state, constants, MODE: tl.constexpr, SLOW: tl.constexpr):
    """Take the steps from begin to end. If SLOW, lanes may be before or after their rows."""
    LAST: tl.constexpr = MODE.width - 1
    LANES: tl.constexpr = MODE.lanes
    lane = tl.arange(0, LANES)
    rank = position.rank
    before = tl.maximum(lane - 1, 0)
    if MODE.strips:
        cells, gaps = _load_edge(begin, end, position)
    ahead0, ahead1 = _query_codes(begin, position, MODE, True)
    for t in range(begin, end):
        letter0 = ahead0
        letter1 = ahead1
        ahead0, ahead1 = _query_codes(t + 1, position, MODE, SLOW)
        live = constants.lift
        if SLOW:
            live = _live(t, position, MODE)
        cell, gap = _left_border(t, position, constants, MODE)
        if MODE.strips:
            step = lane - rank + (t - begin)
            cell = tl.where(position.strip > 0, tl.gather(cells, step, 0), cell)
            gap = tl.where(position.strip > 0, tl.gather(gaps, step, 0), gap)
        left = tl.where(rank == 0, cell, tl.gather(state.h[LAST], before, 0))
        e = tl.where(rank == 0, gap, tl.gather(state.e, before, 0))
        row = position.row0 + t + 1
        e, h, f, top = _row(letter0, letter1, e, row, live, position, state, constants, MODE, SLOW)
        best = state.best
        best0 = state.best0
        best1 = state.best1
        if MODE.query_end or MODE.local:
            if MODE.query_end:
                top = h[LAST] + constants.lift
            best, best0, best1 = _better_end(t, top, live, position, state, constants, MODE, SLOW)
        if MODE.keep:
            at = position.passed + t * (2 * LANES) + 2 * lane
            tl.store(at, h[LAST])
            tl.store(at + 1, e)
        if MODE.strips:
            _store_edge(t, h[LAST], e, position)
        d = left
        if SLOW:
            d = (left & live) | (state.d & ~live)
        state = LaneState(h, f, d, e, best, best0, best1)
    return state


@triton.jit
def best_of_lanes(score, row, lane, rank, lanes, LANES: tl.constexpr):
    """Reduce the ends of a pair's lanes to the best one, in the pair's first lane.

    Of equal scores, the first row wins, then the first lane.
    """
    step = 1
    while step < lanes:
        at = tl.minimum(tl.arange(0, LANES) + step, LANES - 1)
        other = tl.gather(score, at, 0)
        other_row = tl.gather(row, at, 0)
        other_lane = tl.gather(lane, at, 0)
        better = (other > score) | ((other == score) & (other_row < row))
        better &= rank + step < lanes
        score = tl.where(better, other, score)
        row = tl.where(better, other_row, row)
        lane = tl.where(better, other_lane, lane)
        step *= 2
    return score, row, lane


@triton.jit
def target_codes(target, column, n_letters, MODE: tl.constexpr):
    """Load the target's codes for a lane's columns, [LANES, columns]; padding is `n_letters`."""
    COLUMNS: tl.constexpr = MODE.columns
    w = tl.arange(0, COLUMNS)[None, :]
    there = (column[:, None] + w >= 0) & (w < MODE.width)
    codes = tl.load(target[:, None] + w, there, other=0).to(tl.int32)
    return tl.where(there, codes, n_letters)


@triton.jit
def build_profile(profile, codes, scores_ptr, n_letters, MODE: tl.constexpr):
    """Store the scores of every residue or base in a lane's columns, four per word."""
    LANES: tl.constexpr = MODE.lanes
    WORDS: tl.constexpr = MODE.columns // 4
    PARTS: tl.constexpr = (MODE.columns + 15) // 16
    word = tl.arange(0, WORDS)[None, :]
    shift = 8 * tl.arange(0, 4)[None, None, :]
    for letter in range(n_letters):
        scores = tl.load(scores_ptr + codes * n_letters + letter).to(tl.int32)
        words = tl.sum(tl.reshape(scores, (LANES, WORDS, 4)) << shift, 2)
        at = (letter * PARTS + word // 4) * (LANES * 4) + word % 4
        tl.store(profile[:, None] + at, words)


@triton.jit
def column_scores(codes, table, scores_ptr, n_letters, MODE: tl.constexpr):
    """Return for each column four bytes of the table, or a pointer to a row of the matrix."""
    WIDTH: tl.constexpr = MODE.width
    columns = columns_of(codes, MODE.lanes, MODE.columns)
    scores = ()
    for w in tl.static_range(WIDTH):
        if MODE.source == FROM_MATRIX:
            score = scores_ptr + columns[w] * n_letters
        else:
            score = tl.gather(table, columns[w], 0)
        scores = appended(scores, score)
    return scores


@triton.jit
def _top_border(j0, j1, top_open, top_slope, constants, MODE: tl.constexpr):
    """Return cells above the first row that follow j target positions; negative j count as 0."""
    x0 = tl.where(j0 > 0, j0 * top_slope - top_open, 0)
    x1 = tl.where(j1 > 0, j1 * top_slope - top_open, 0)
    x = constants.floor + x0
    if MODE.packed:
        low, high = halves(constants.floor)
        x = joined(low + x0, high + x1, True)
    if MODE.banded:
        x = tl.where(j0 <= constants.band, x, NEVER)
    return x


@triton.jit
def first_state(top_open, top_slope, lowest, position, constants, MODE: tl.constexpr):
    """Return the values that each lane holds before its first row."""
    WIDTH: tl.constexpr = MODE.width
    h = ()
    f = ()
    for w in tl.static_range(WIDTH):
        j0 = position.column0 + w + 1
        j1 = position.column1 + w + 1
        x = _top_border(j0, j1, top_open, top_slope, constants, MODE)
        h = appended(h, x - constants.lift)
        f = appended(f, x - constants.cost)
    d = _top_border(position.column0, position.column1, top_open, top_slope, constants, MODE)
    d -= constants.lift
    none = 0 * position.rank
    best = lowest
    if MODE.local:
        best = constants.floor
    return LaneState(h, f, d, none, best, none, none)


@triton.jit
def best_of_last_row(lowest, position, state, constants, MODE: tl.constexpr):
    """Return a lane's largest cell of the last row, where the end of the target is free."""
    WIDTH: tl.constexpr = MODE.width
    PACKED: tl.constexpr = MODE.packed
    TARGET: tl.constexpr = MODE.target
    PAST: tl.constexpr = -32768 if PACKED else NEVER
    best = lowest
    for w in tl.static_range(WIDTH):
        j0 = position.column0 + w + 1
        j1 = position.column1 + w + 1
        ramp0 = tl.where(j0 > 0, -constants.per_letter * j0, PAST)
        ramp1 = tl.where(j1 > 0, -constants.per_letter * j1, PAST)
        x = state.h[w] + constants.lift
        ramp = joined(ramp0, ramp1, PACKED)
        best = larger_sum(x, ramp, best, PACKED, TARGET)
    return best
