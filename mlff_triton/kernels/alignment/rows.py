"""Steps of the lanes that align sequences, in a program of `alignment`."""

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

NEVER = tl.constexpr(-(2**29))  # less than any score, and far from any overflow
FROM_TABLE = tl.constexpr(TABLE)
FROM_MATRIX = tl.constexpr(MATRIX)
FROM_PROFILE = tl.constexpr(PROFILE)


class Mode(NamedTuple):
    """What a kernel is compiled for.

    Attributes
    ----------
    source : int
        Of scores: `TABLE`, `PROFILE` or `MATRIX`.
    width, columns : int
        Columns of a lane, and these rounded up to a power of two.
    linear : bool
        Whether opening a gap costs no more than extending it.
    local, query_begin, query_end, target_end : bool
        What costs nothing: see `Free`. (That of a target's beginning is in the first row alone.)
    banded : bool
        Whether cells far from the diagonal are left out.
    strips : bool
        Whether there are several of a target.
    keep : bool
        Whether the edges of tiles are kept, for the way back.
    packed : bool
        Whether lanes hold two pairs.
    lanes, chunk : int
        Of a program, and steps between two looks at the strip before or two states that are kept.
    target : str
        Whose instructions there are: see `_lanes.target`.
    """

    source: int
    width: int
    columns: int
    linear: bool
    local: bool
    query_begin: bool
    query_end: bool
    target_end: bool
    banded: bool
    strips: bool
    keep: bool
    packed: bool
    lanes: int
    chunk: int
    target: str


class Numbers(NamedTuple):
    """Constants in every half of a lane's registers, negative ones by `joined`, and the band."""

    cost: tl.tensor  # less than nothing
    extend: tl.tensor  # likewise
    opening: tl.tensor  # what is to be subtracted
    extending: tl.tensor  # likewise
    lift: tl.tensor
    floor: tl.tensor  # what a cell of score 0 holds
    open_left: tl.tensor
    per_letter: tl.tensor
    band: tl.tensor


class Place(NamedTuple):
    """Where a lane is; what ends in 0 and 1 is of its two pairs."""

    k: tl.tensor  # its number in its pair
    lanes: tl.tensor  # of a pair
    strip: tl.tensor
    rows: tl.tensor  # of the longest query
    query0: tl.tensor  # pointers to the letter of step 0
    query1: tl.tensor
    row0: tl.tensor  # letters of the query before step 0, negative where it begins later
    row1: tl.tensor
    column0: tl.tensor  # letters of the target before the lane, likewise
    column1: tl.tensor
    scores0: tl.tensor  # of the columns: see `_row`
    scores1: tl.tensor
    edge: tl.tensor  # pointers to what strips pass on
    kept: tl.tensor


class State(NamedTuple):
    """What a lane holds of its columns."""

    h: tl.tensor  # cells of the last row, less the lift
    f: tl.tensor  # gaps below them
    d: tl.tensor  # the cell left of them, less the lift
    e: tl.tensor  # the gap to their right
    best: tl.tensor  # the largest cell that may be an end
    best0: tl.tensor  # letters of the query before that
    best1: tl.tensor


@triton.jit
def _words(profile, letter, MODE: tl.constexpr):
    """Scores of a letter against a lane's columns, four a word."""
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
    letter0, letter1, e, row, live, place, state, numbers, MODE: tl.constexpr, SLOW: tl.constexpr
):
    """A letter of the query against a lane's columns.

    Where scores come from a table, `place` has a register of four bytes a column; for a profile, a
    pointer to a lane's; for a matrix, a pointer a column.

    Returns
    -------
    e, h, f
        Gaps to the right of the columns, cells less the lift, gaps below.
    best
        The largest cell, if the alignment is local.
    """
    WIDTH: tl.constexpr = MODE.width
    PACKED: tl.constexpr = MODE.packed
    TARGET: tl.constexpr = MODE.target
    BYTES: tl.constexpr = 0xC480 if PACKED else 0x8880  # of a selector: see `pick`
    if MODE.source == FROM_PROFILE:
        words0 = _words(place.scores0, letter0, MODE)
        words1 = words0
        if PACKED:
            words1 = _words(place.scores1, letter1, MODE)
    selector = BYTES + (letter0 * 0x11 + letter1 * 0x1100 if PACKED else letter0 * 0x1111)
    d = state.d
    h = ()
    f = ()
    best = numbers.floor
    for w in tl.static_range(WIDTH):
        if MODE.source == FROM_MATRIX:
            s = tl.load(place.scores0[w] + letter0)
        elif MODE.source == FROM_PROFILE:
            byte = BYTES + 0x1111 * (w % 4) + 0 * letter0
            s = pick(words0[w // 4], words1[w // 4], byte, TARGET)
        else:
            s = pick(place.scores0[w], place.scores1[w], selector, TARGET)
        x = larger(larger(d + s, e, PACKED, TARGET), state.f[w], PACKED, TARGET)
        if MODE.banded:
            column = tl.maximum(place.column0 + w + 1, 0)
            x = tl.where(tl.abs(row - column) <= numbers.band, x, NEVER)
        d = state.h[w]
        cell = x - numbers.lift
        below = state.f[w]
        if MODE.local:
            e = larger_sum(e, numbers.extend, numbers.floor, PACKED, TARGET)
            below = below - numbers.extending
            best = larger(best, x, PACKED, TARGET)
        if MODE.linear and not MODE.local:
            e = x
            below = x
        else:
            e = larger_sum(x, numbers.cost, e, PACKED, TARGET)
            below = larger_sum(x, numbers.cost, below, PACKED, TARGET)
        if SLOW:
            cell = (cell & live) | (state.h[w] & ~live)
            below = (below & live) | (state.f[w] & ~live)
        h = appended(h, cell)
        f = appended(f, below)
    return e, h, f, best


@triton.jit
def _outside(t, place, numbers, MODE: tl.constexpr):
    """Cells left of the first column, less the lift, and gaps to their right."""
    x = numbers.floor - numbers.open_left
    if MODE.query_begin:
        i0 = tl.maximum(place.row0 + t + 1, 0)
        i1 = tl.maximum(place.row1 + t + 1, 0)
        x += joined(i0 * numbers.per_letter, i1 * numbers.per_letter, MODE.packed)
    if MODE.banded:
        x = tl.where(place.row0 + t + 1 <= numbers.band, x, NEVER)
    gap = x if MODE.local else x - numbers.opening
    return x - numbers.lift, gap


@triton.jit
def _letters(t, place, MODE: tl.constexpr, SLOW: tl.constexpr):
    """Codes of the letters of a row; anything where there are none."""
    if SLOW:
        before_end = t < place.rows + place.k
        letter0 = tl.load(place.query0 + t, (place.row0 + t >= 0) & before_end, other=0)
        letter1 = letter0
        if MODE.packed:
            letter1 = tl.load(place.query1 + t, (place.row1 + t >= 0) & before_end, other=0)
    else:
        letter0 = tl.load(place.query0 + t)
        letter1 = letter0
        if MODE.packed:
            letter1 = tl.load(place.query1 + t)
    return letter0.to(tl.int32), letter1.to(tl.int32)


@triton.jit
def _better_end(t, top, live, place, state, numbers, MODE: tl.constexpr, SLOW: tl.constexpr):
    """The best end so far, and its rows, with what the last row has."""
    PACKED: tl.constexpr = MODE.packed
    TARGET: tl.constexpr = MODE.target
    if MODE.query_end:
        i0 = (place.row0 + t + 1) * numbers.per_letter
        i1 = (place.row1 + t + 1) * numbers.per_letter
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
        best0 = tl.where(new0 > old0, place.row0 + t + 1, best0)
        best1 = tl.where(new1 > old1, place.row1 + t + 1, best1)
    return top, best0, best1


@triton.jit
def take_steps(begin, end, place, state, numbers, MODE: tl.constexpr, SLOW: tl.constexpr):
    """Take the steps from begin to end; in SLOW ones, lanes may be before or after their rows."""
    LAST: tl.constexpr = MODE.width - 1
    LANES: tl.constexpr = MODE.lanes
    PACKED: tl.constexpr = MODE.packed
    lane = tl.arange(0, LANES)
    k = place.k
    before = tl.maximum(lane - 1, 0)
    if MODE.strips:  # what the strip before has passed on for these steps
        handed = (place.strip > 0) & (k < end - begin) & (begin + k < place.rows)
        at = place.edge + 2 * (begin + k)
        cells = tl.load(at, handed, other=0, cache_modifier=".cg")
        gaps = tl.load(at + 1, handed, other=0, cache_modifier=".cg")
    ahead0, ahead1 = _letters(begin, place, MODE, True)
    for t in range(begin, end):
        letter0 = ahead0
        letter1 = ahead1
        ahead0, ahead1 = _letters(t + 1, place, MODE, SLOW)
        live = numbers.lift
        if SLOW:
            before_end = t < place.rows + k
            live0 = tl.where((place.row0 + t >= 0) & before_end, -1, 0)
            live1 = tl.where((place.row1 + t >= 0) & before_end, -1, 0)
            live = joined(live0, live1, PACKED)
        cell, gap = _outside(t, place, numbers, MODE)
        if MODE.strips:
            step = lane - k + (t - begin)
            cell = tl.where(place.strip > 0, tl.gather(cells, step, 0), cell)
            gap = tl.where(place.strip > 0, tl.gather(gaps, step, 0), gap)
        left = tl.where(k == 0, cell, tl.gather(state.h[LAST], before, 0))
        e = tl.where(k == 0, gap, tl.gather(state.e, before, 0))
        row = place.row0 + t + 1
        e, h, f, top = _row(letter0, letter1, e, row, live, place, state, numbers, MODE, SLOW)
        best = state.best
        best0 = state.best0
        best1 = state.best1
        if MODE.query_end or MODE.local:
            if MODE.query_end:
                top = h[LAST] + numbers.lift
            best, best0, best1 = _better_end(t, top, live, place, state, numbers, MODE, SLOW)
        if MODE.keep:
            at = place.kept + t * (2 * LANES) + 2 * lane
            tl.store(at, h[LAST])
            tl.store(at + 1, e)
        if MODE.strips:
            passed = t - (place.lanes - 1)
            passes = (k == place.lanes - 1) & (passed >= 0) & (passed < place.rows)
            tl.store(place.edge + 2 * passed, h[LAST], passes)
            tl.store(place.edge + 2 * passed + 1, e, passes)
        d = left
        if SLOW:
            d = (left & live) | (state.d & ~live)
        state = State(h, f, d, e, best, best0, best1)
    return state


@triton.jit
def best_of_lanes(score, row, lane, k, lanes, LANES: tl.constexpr):
    """The best of a pair's lanes, in its first one: of equal ones the first row, then lane."""
    step = 1
    while step < lanes:
        at = tl.minimum(tl.arange(0, LANES) + step, LANES - 1)
        other = tl.gather(score, at, 0)
        other_row = tl.gather(row, at, 0)
        other_lane = tl.gather(lane, at, 0)
        better = (other > score) | ((other == score) & (other_row < row))
        better &= k + step < lanes
        score = tl.where(better, other, score)
        row = tl.where(better, other_row, row)
        lane = tl.where(better, other_lane, lane)
        step *= 2
    return score, row, lane


@triton.jit
def target_codes(target, column, n_letters, MODE: tl.constexpr):
    """Codes of a lane's letters of the target, [LANES, columns]; of pads, the number of letters."""
    COLUMNS: tl.constexpr = MODE.columns
    w = tl.arange(0, COLUMNS)[None, :]
    there = (column[:, None] + w >= 0) & (w < MODE.width)
    codes = tl.load(target[:, None] + w, there, other=0).to(tl.int32)
    return tl.where(there, codes, n_letters)


@triton.jit
def build_profile(profile, codes, scores_ptr, n_letters, MODE: tl.constexpr):
    """Write what each letter scores against a lane's columns, four to a word."""
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
    """For each column, four bytes of the table, or a pointer to its letter's row of the matrix."""
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
def first_row(j0, j1, top_open, top_slope, numbers, MODE: tl.constexpr):
    """Cells above the first row; numbers of letters of the target before them below 0 are 0."""
    x0 = tl.where(j0 > 0, j0 * top_slope - top_open, 0)
    x1 = tl.where(j1 > 0, j1 * top_slope - top_open, 0)
    x = numbers.floor + x0
    if MODE.packed:
        low, high = halves(numbers.floor)
        x = joined(low + x0, high + x1, True)
    if MODE.banded:
        x = tl.where(j0 <= numbers.band, x, NEVER)
    return x


@triton.jit
def first_state(top_open, top_slope, lowest, place, numbers, MODE: tl.constexpr):
    """What a lane holds before its first row."""
    WIDTH: tl.constexpr = MODE.width
    h = ()
    f = ()
    for w in tl.static_range(WIDTH):
        j0 = place.column0 + w + 1
        j1 = place.column1 + w + 1
        x = first_row(j0, j1, top_open, top_slope, numbers, MODE)
        h = appended(h, x - numbers.lift)
        f = appended(f, x - numbers.opening)
    d = first_row(place.column0, place.column1, top_open, top_slope, numbers, MODE) - numbers.lift
    none = 0 * place.k
    best = lowest
    if MODE.local:
        best = numbers.floor
    return State(h, f, d, none, best, none, none)


@triton.jit
def best_of_last_row(lowest, place, state, numbers, MODE: tl.constexpr):
    """The largest cell of a lane's last row that is an end, if the rest of the target is free."""
    WIDTH: tl.constexpr = MODE.width
    PACKED: tl.constexpr = MODE.packed
    TARGET: tl.constexpr = MODE.target
    PAST: tl.constexpr = -32768 if PACKED else NEVER
    best = lowest
    for w in tl.static_range(WIDTH):
        j0 = place.column0 + w + 1
        j1 = place.column1 + w + 1
        ramp0 = tl.where(j0 > 0, -numbers.per_letter * j0, PAST)
        ramp1 = tl.where(j1 > 0, -numbers.per_letter * j1, PAST)
        x = state.h[w] + numbers.lift
        ramp = joined(ramp0, ramp1, PACKED)
        best = larger_sum(x, ramp, best, PACKED, TARGET)
    return best
