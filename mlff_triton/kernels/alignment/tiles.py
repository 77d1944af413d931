"""Tiles of alignment tables, recomputed from checkpoints: device functions of the traceback.

A tile is the part of a table that one lane of the sweep filled in between two saved states. One
lane recomputes it, and records for every cell in four bits how it is reached.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from mlff_triton.kernels.alignment.lane_steps import NEVER
from mlff_triton.kernels.alignment.lanes import appended, columns_of, taken_apart
from mlff_triton.kernels.alignment.reference.alignment import (
    DIAGONAL,
    LEFT,
    OPENS_LEFT,
    OPENS_UP,
)

_DIAGONAL = tl.constexpr(DIAGONAL)
_LEFT = tl.constexpr(LEFT)
_OPENS_LEFT = tl.constexpr(OPENS_LEFT)
_OPENS_UP = tl.constexpr(OPENS_UP)
STOPS = tl.constexpr(DIAGONAL | LEFT)  # both bits; a move up has neither


class Pair(NamedTuple):
    """The pair whose alignment each lane traces."""

    query: tl.tensor  # pointer to the first residue or base
    target: tl.tensor
    m: tl.tensor  # length of the target
    n: tl.tensor  # length of the query
    pad_rows: tl.tensor  # rows of padding before the query
    score: tl.tensor
    group: tl.tensor  # group of pairs in the sweep
    first_lane: tl.tensor  # the pair's first lane in its program of the sweep
    high: tl.tensor  # True if the pair is in the upper halves


class Tile(NamedTuple):
    """Position of a tile."""

    across: tl.tensor  # lanes to its left, in all strips
    chunk: tl.tensor  # index of its chunk of steps
    row: tl.tensor  # query positions before it, not counting rows of padding
    column: tl.tensor  # target positions before it; negative in the padding
    n_rows: tl.tensor  # rows down to that of the alignment


class Walk(NamedTuple):
    """Progress of each lane's traceback."""

    i: tl.tensor  # query positions still to trace
    j: tl.tensor  # target positions still to trace
    gap: tl.tensor  # direction of the current gap until its opening is found, else STOP
    current: tl.tensor  # operation of the current run
    count: tl.tensor  # length of the current run
    n_runs: tl.tensor  # runs written so far


class Layout(NamedTuple):
    """Layout of the sweep's checkpoints."""

    lanes: tl.tensor  # lanes per pair
    strips: tl.tensor  # strips per target
    max_steps: tl.tensor


@triton.jit
def _half(x, high, MODE: tl.constexpr):
    """Return the half of a register that holds a lane's pair."""
    PACKED: tl.constexpr = MODE.packed
    low, upper = taken_apart(x, PACKED)
    return tl.where(high, upper, low)


@triton.jit
def _border(length, slope, opening, constants, MODE: tl.constexpr):
    """Return border cells that follow `length` positions of one sequence and none of the other."""
    x = constants.bias + tl.where(length > 0, length * slope - opening, 0)
    return tl.where(length <= constants.band, x, NEVER) if MODE.banded else x


@triton.jit
def find_tile(walk, searched, end_lane, active, pair, layout, MODE: tl.constexpr):
    """Return the tile that an alignment has reached.

    During the search for the column of an alignment's end, `end_lane` gives the tile's columns.
    """
    pads = layout.lanes * layout.strips * MODE.width - pair.m
    across = tl.where(searched, end_lane, (walk.j - 1 + pads) // MODE.width)
    rank = across % layout.lanes
    chunk = (walk.i - 1 + pair.pad_rows + rank) // MODE.chunk
    row = tl.maximum(chunk * MODE.chunk - rank - pair.pad_rows, 0)
    column = across * MODE.width - pads
    return Tile(across, chunk, row, column, tl.where(active, walk.i - row, 0))


@triton.jit
def _load_state(tile, pair, states_ptr, active, layout, lift, MODE: tl.constexpr):
    """Load the cells above a tile, and the gaps that leave them downward."""
    PAIRS: tl.constexpr = tile.row.shape[0]
    rank = tile.across % layout.lanes
    task = (pair.group * layout.strips + tile.across // layout.lanes).to(tl.int64)
    chunk = task * (layout.max_steps // MODE.chunk) + tile.chunk
    state = chunk * MODE.lanes + pair.first_lane + rank
    w = tl.arange(0, MODE.columns)[None, :]
    at = states_ptr + (state * (2 * MODE.columns))[:, None] + w
    there = active[:, None] & (w < MODE.width)
    h = _half(tl.load(at, there, other=0), pair.high[:, None], MODE) + lift
    f = _half(tl.load(at + MODE.columns, there, other=0), pair.high[:, None], MODE)
    return columns_of(h, PAIRS, MODE.columns), columns_of(f, PAIRS, MODE.columns)


@triton.jit
def _passed_to(tile, pair, passed_ptr, layout, MODE: tl.constexpr):
    """Return pointers to the values that the lane to the left passed to the first row of a tile."""
    left_lane = tl.where(tile.across > 0, tile.across - 1, 0)
    task = (pair.group * layout.strips + left_lane // layout.lanes).to(tl.int64)
    rank = left_lane % layout.lanes
    passed = passed_ptr + task * layout.max_steps * (2 * MODE.lanes) + 2 * (pair.first_lane + rank)
    passed += (tile.row + pair.pad_rows + rank) * (2 * MODE.lanes)
    return passed


@triton.jit
def _load_row(s, tile, pair, passed, MODE: tl.constexpr):
    """Load the query's code in a row of a tile, and the cell and gap to the left of the row."""
    live = s < tile.n_rows
    inner = live & (tile.across > 0)
    letter = tl.load(pair.query + tile.row + s, live, other=0).to(tl.int32)
    left = tl.load(passed + s * (2 * MODE.lanes), inner, other=0)
    return letter, left, tl.load(passed + s * (2 * MODE.lanes) + 1, inner, other=0)


@triton.jit
def _corner(tile, pair, passed, active, constants, MODE: tl.constexpr):
    """Return the cell above and to the left of a tile."""
    inner = tile.across > 0
    d = tl.load(passed - 2 * MODE.lanes, active & inner & (tile.row > 0), other=0)
    d = _half(d, pair.high, MODE) + constants.lift
    side = _border(tile.row, constants.left_slope, constants.open_left, constants, MODE)
    top = tl.maximum(tile.column, 0)
    top = _border(top, constants.top_slope, constants.open_top, constants, MODE)
    return tl.where(tile.row > 0, tl.where(inner, d, side), top)


@triton.jit
def _is_end(x, column, is_last_row, walk, pair, constants, MODE: tl.constexpr):
    """Return True where a cell is an end with the score of its pair."""
    total = x - constants.bias - constants.per_letter * (walk.i + column)
    ends = is_last_row & (total == pair.score) & (column > 0)
    if not MODE.local:
        ends &= (column == pair.m) | (MODE.target_end & (walk.i == pair.n))
    return ends


@triton.jit
def _move(x, diagonal, e, opened, f, above, constants, MODE: tl.constexpr):
    """Return the four bits of a cell: its move, and the gaps that open before it."""
    move = tl.where(x == diagonal, _DIAGONAL, 0) | tl.where(x == e, _LEFT, 0)
    if MODE.local:
        move = tl.where(x == diagonal, _DIAGONAL, move)
        move = tl.where(x == constants.bias, STOPS, move)
    move |= tl.where(e == opened, _OPENS_LEFT, 0)
    move |= tl.where(f == above - constants.cost, _OPENS_UP, 0)
    return move


@triton.jit
def fill_tile(
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
    MODE: tl.constexpr,
):
    """Recompute the rows of a tile, and store how its cells are reached, eight cells per word.

    Returns
    -------
    found
        First column of the last row, from 1, that is an end with the score of the pair; 0 if none.
    """
    PAIRS: tl.constexpr = tile.row.shape[0]
    WIDTH: tl.constexpr = MODE.width
    COLUMNS: tl.constexpr = MODE.columns
    WORDS: tl.constexpr = (WIDTH + 7) // 8
    none = tl.zeros([PAIRS], tl.int32)
    offset = tl.arange(0, COLUMNS)[None, :]
    there = active[:, None] & (tile.column[:, None] + offset >= 0) & (offset < WIDTH)
    codes = tl.load((pair.target + tile.column)[:, None] + offset, there, other=0).to(tl.int32)
    codes = tl.where(there, codes, n_letters) * n_letters
    h, f = _load_state(tile, pair, checkpoints.states, active, layout, constants.lift, MODE)
    passed = _passed_to(tile, pair, checkpoints.passed, layout, MODE)
    d = _corner(tile, pair, passed, active, constants, MODE)
    inner = tile.across > 0

    found = none
    letter, left, e = _load_row(0, tile, pair, passed, MODE)
    for s in range(tl.max(tile.n_rows, 0)):
        row = tile.row + s + 1
        scores = columns_of(tl.load(matrix_ptr + codes + letter[:, None]), PAIRS, COLUMNS)
        left = _half(left, pair.high, MODE) + constants.lift
        e = _half(e, pair.high, MODE)
        letter, next_left, next_e = _load_row(s + 1, tile, pair, passed, MODE)
        outside = _border(row, constants.left_slope, constants.open_left, constants, MODE)
        left = tl.where(inner, left, outside)
        e = tl.where(inner, e, outside if MODE.local else outside - constants.cost)
        x = left
        next_h = ()
        next_f = ()
        word = none
        for w in tl.static_range(WIDTH):
            column = tile.column + w + 1
            opened = x - constants.cost
            diagonal = d + scores[w]
            x = tl.maximum(tl.maximum(diagonal, e), f[w])
            if MODE.banded:
                x = tl.where(tl.abs(row - tl.maximum(column, 0)) <= constants.band, x, NEVER)
            move = _move(x, diagonal, e, opened, f[w], h[w], constants, MODE)
            word |= move << (4 * (w % 8))
            if w % 8 == 7 or w == WIDTH - 1:
                tl.store(moves + (s * WORDS + w // 8) * PAIRS, word)
                word = none
            if MODE.searches:
                is_last_row = s == tile.n_rows - 1
                ends = _is_end(x, column, is_last_row, walk, pair, constants, MODE)
                found = tl.where(ends & (found == 0), w + 1, found)
            d = h[w]
            below = f[w]
            if MODE.local:
                e = tl.maximum(e - constants.extend, constants.bias)
                below -= constants.extend
            e = tl.maximum(x - constants.cost, e)
            next_h = appended(next_h, x)
            next_f = appended(next_f, tl.maximum(x - constants.cost, below))
        for w in tl.static_range(WIDTH, COLUMNS):
            next_h = appended(next_h, h[w])
            next_f = appended(next_f, f[w])
        h = next_h
        f = next_f
        d = left
        left = next_left
        e = next_e
    return found
