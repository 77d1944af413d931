"""Pairwise alignment of many sequences with affine gaps: a wavefront in every warp.

    H(i, j) = max(H(i - 1, j - 1) + s(a_i, b_j), E(i, j), F(i, j))
    E(i, j) = max(H(i, j - 1) - open, E(i, j - 1) - extend)
    F(i, j) = max(H(i - 1, j) - open, F(i - 1, j) - extend)

(S. Needleman and C. Wunsch, https://doi.org/10.1016/0022-2836(70)90057-4; O. Gotoh,
https://doi.org/10.1016/0022-2836(82)90398-9.) A lane keeps the columns of a few letters of the
target in registers, for two pairs of sequences at a time, and takes a row, a letter of the query, a
step. The lane to its right does so a step later with what the lane had last, which is passed on
within the warp: nothing but letters is read from memory. Where the lanes of a program do not cover
a target, programs take strips of it, and pass on what is at the edge through memory.

Unless the alignment is local, cells hold ``H + extend (i + j)``: then extending a gap costs
nothing, and opening one ``open - extend``. Shorter sequences have pads before them, so that all end
in the last lane, column and row. Columns of pads are columns before the first letter, by how pads
score; in rows of pads, and after the last row, a lane stands still.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.alignment import lanes
from mlff_triton.kernels.alignment.lanes import block_of, joined, taken_apart
from mlff_triton.kernels.alignment.path import CHUNK, Kept, Paths, paths
from mlff_triton.kernels.alignment.plan import LANES, MATRIX, PROFILE, Launch, launches, scheme
from mlff_triton.kernels.alignment.rows import (
    FROM_PROFILE,
    FROM_TABLE,
    NEVER,
    Mode,
    Numbers,
    Place,
    best_of_lanes,
    best_of_last_row,
    build_profile,
    column_scores,
    first_state,
    take_steps,
    target_codes,
)
from mlff_triton.kernels.alignment.streams import side_by_side
from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.hardware import multiprocessors
from mlff_triton.kernels.types.sequence_pairs import GLOBAL, Aligned, Free, Gaps, Pairs, Runs

_RESIDENT = 16  # programs of a multiprocessor at a time
_BUDGET = 3 * 2**30  # bytes of memory to work with
_FAR = 2**31 - 1


@triton.jit
def _store_end(position, score, row, place, n_pairs, score_ptr, row_ptr, lane_ptr):
    """Store the best end of a pair in a strip."""
    across = place.strip * place.lanes + place.k
    LANES: tl.constexpr = place.k.shape[0]
    score, row, lane = best_of_lanes(score, row, across, place.k, place.lanes, LANES)
    chosen = (position < n_pairs) & (place.k == 0)
    at = place.strip * n_pairs + position
    tl.store(score_ptr + at, score, chosen)
    tl.store(row_ptr + at, row, chosen)
    tl.store(lane_ptr + at, lane, chosen)


# Of what changes from batch to batch, none is worth a compilation.
@triton.jit(do_not_specialize=["n_pairs", "n_tasks", "lanes", "max_rows", "max_steps"])
def _alignment_fwd_kernel(  # noqa: C901 - branches of what it is compiled for
    letters_ptr,
    query_start_ptr,
    query_length_ptr,
    target_start_ptr,
    target_length_ptr,
    scores_ptr,
    profiles_ptr,
    ticket_ptr,
    progress_ptr,
    edges_ptr,
    kept_ptr,
    states_ptr,
    score_ptr,
    row_ptr,
    lane_ptr,
    n_pairs,
    n_tasks,
    n_letters,
    lanes,
    strips,
    max_rows,
    max_steps,
    cost,
    extend,
    per_letter,
    lift,
    bias,
    open_left,
    open_top,
    top_slope,
    band,
    MODE: tl.constexpr,
):
    LANES: tl.constexpr = MODE.lanes
    CHUNK: tl.constexpr = MODE.chunk
    COLUMNS: tl.constexpr = MODE.columns
    PACKED: tl.constexpr = MODE.packed
    ONE: tl.constexpr = 65537 if PACKED else 1
    lane = tl.arange(0, LANES)
    k = lane % lanes
    zero = tl.zeros([LANES], tl.int32)
    numbers = Numbers(
        joined(zero - cost, zero - cost, PACKED),
        joined(zero - extend, zero - extend, PACKED),
        zero + cost * ONE,
        zero + extend * ONE,
        zero + lift * ONE,
        zero + bias * ONE,
        zero + open_left * ONE,
        per_letter,
        band,
    )
    lowest = joined(zero - 32768, zero - 32768, True) if PACKED else zero + NEVER
    table = zero
    if MODE.source == FROM_TABLE:
        table = tl.load(scores_ptr + lane, lane <= n_letters, other=0)

    task = tl.atomic_add(ticket_ptr, 1)
    while task < n_tasks:
        next_task = tl.atomic_add(ticket_ptr, 1)
        group = task // strips
        strip = task % strips
        slot = group * (LANES // lanes) + lane // lanes
        position0 = slot * (1 + PACKED)
        position1 = position0 + PACKED
        pair0 = tl.minimum(position0, n_pairs - 1)
        pair1 = tl.minimum(position1, n_pairs - 1)
        n0 = tl.load(query_length_ptr + pair0).to(tl.int32)
        n1 = tl.load(query_length_ptr + pair1).to(tl.int32)
        m0 = tl.load(target_length_ptr + pair0).to(tl.int32)
        m1 = tl.load(target_length_ptr + pair1).to(tl.int32)
        rows = tl.max(tl.maximum(n0, n1), 0)
        shortest = tl.min(tl.minimum(n0, n1), 0)
        row0 = n0 - rows - k
        row1 = n1 - rows - k
        column0 = ((strip - strips) * lanes + k) * MODE.width + m0
        column1 = ((strip - strips) * lanes + k) * MODE.width + m1

        target0 = letters_ptr + tl.load(target_start_ptr + pair0) + column0
        target1 = letters_ptr + tl.load(target_start_ptr + pair1) + column1
        codes0 = target_codes(target0, column0, n_letters, MODE)
        codes1 = target_codes(target1, column1, n_letters, MODE)
        if MODE.source == FROM_PROFILE:
            size = n_letters * ((COLUMNS + 15) // 16) * (LANES * 4)
            scores0 = profiles_ptr + tl.program_id(0).to(tl.int64) * (2 * size) + 4 * lane
            scores1 = scores0 + size
            tl.debug_barrier()
            build_profile(scores0, codes0, scores_ptr, n_letters, MODE)
            if PACKED:
                build_profile(scores1, codes1, scores_ptr, n_letters, MODE)
            tl.debug_barrier()
        else:
            scores0 = column_scores(codes0, table, scores_ptr, n_letters, MODE)
            scores1 = scores0
            if PACKED:
                scores1 = column_scores(codes1, table, scores_ptr, n_letters, MODE)
        edge = edges_ptr + (slot * 2).to(tl.int64) * max_rows
        kept = kept_ptr + task.to(tl.int64) * max_steps * (2 * LANES)
        place = Place(
            k,
            lanes,
            strip,
            rows,
            letters_ptr + tl.load(query_start_ptr + pair0) + row0,
            letters_ptr + tl.load(query_start_ptr + pair1) + row1,
            row0,
            row1,
            column0,
            column1,
            scores0,
            scores1,
            edge,
            kept,
        )
        state = first_state(open_top, top_slope, lowest, place, numbers, MODE)

        # In steps before `slow`, lanes wait for their first row; from `fast` on, they may be done.
        steps = rows + lanes - 1
        slow = tl.minimum(rows - shortest + lanes - 1, steps)
        fast = rows
        if MODE.source == FROM_TABLE and not (MODE.local or MODE.query_end or MODE.target_end):
            fast = steps  # nobody looks at what lanes go on to do
        begin = 0
        while begin < steps:
            if MODE.keep or MODE.strips:
                end = tl.minimum(begin + CHUNK, steps)
            else:
                end = tl.where(begin < slow, slow, tl.where(begin < fast, fast, steps))
            if MODE.keep:
                states = task.to(tl.int64) * (max_steps // CHUNK) + begin // CHUNK
                at = (states * LANES + lane)[:, None] * (2 * COLUMNS)
                at = states_ptr + at + tl.arange(0, COLUMNS)[None, :]
                tl.store(at, block_of(state.h, LANES, COLUMNS))
                tl.store(at + COLUMNS, block_of(state.f, LANES, COLUMNS))
            if MODE.strips:
                wanted = tl.where(strip > 0, tl.minimum(end, rows), 0)
                before = progress_ptr + tl.maximum(task - 1, 0)
                passed = tl.atomic_add(before, 0, sem="acquire")
                while passed < wanted:
                    passed = tl.atomic_add(before, 0, sem="acquire")
            if (begin < slow) | (end > fast):
                state = take_steps(begin, end, place, state, numbers, MODE, True)
            else:
                state = take_steps(begin, end, place, state, numbers, MODE, False)
            if MODE.strips:
                tl.debug_barrier()
                passing = tl.maximum(tl.minimum(end - lanes + 1, rows), 0)
                tl.atomic_xchg(progress_ptr + task, passing, sem="release")
            begin = end

        rightmost = (k == lanes - 1) & (strip == strips - 1)
        if MODE.local or MODE.query_end or MODE.target_end:
            best = state.best if MODE.local else tl.where(rightmost, state.best, lowest)
            score0, score1 = taken_apart(best, PACKED)
            best0 = state.best0
            best1 = state.best1
            if not MODE.local:
                score0 -= per_letter * m0
                score1 -= per_letter * m1
            if MODE.target_end:
                ending = best_of_last_row(lowest, place, state, numbers, MODE)
                ending0, ending1 = taken_apart(ending, PACKED)
                ending0 -= per_letter * n0
                ending1 -= per_letter * n1
                best0 = tl.where(ending0 > score0, n0, best0)
                best1 = tl.where(ending1 > score1, n1, best1)
                score0 = tl.maximum(score0, ending0)
                score1 = tl.maximum(score1, ending1)
            _store_end(
                position0, score0 - bias, best0, place, n_pairs, score_ptr, row_ptr, lane_ptr
            )
            if PACKED:
                _store_end(
                    position1, score1 - bias, best1, place, n_pairs, score_ptr, row_ptr, lane_ptr
                )
        else:
            score0, score1 = taken_apart(state.h[MODE.width - 1] + numbers.lift, PACKED)
            score0 -= bias + per_letter * (n0 + m0)
            score1 -= bias + per_letter * (n1 + m1)
            tl.store(score_ptr + position0, score0, (position0 < n_pairs) & rightmost)
            if PACKED:
                tl.store(score_ptr + position1, score1, (position1 < n_pairs) & rightmost)
        task = next_task


class _Ends(NamedTuple):
    """Where the best alignments of a launch end, int32 [strips, n]: score, row and lane."""

    score: Tensor
    row: Tensor
    lane: Tensor

    def best(self) -> _Ends:
        """Those of all strips, [n]: of equal ones the first row, then lane."""
        score = self.score.amax(0)
        row = self.row.where(self.score == score, _FAR).amin(0)
        lane = self.lane.where((self.score == score) & (self.row == row), _FAR).amin(0)
        return _Ends(score, row, lane)


class _Found(NamedTuple):
    """Scores int32 [n], ends int32 [n, 2] and the lanes whose columns those are in, or -1, [n]."""

    score: Tensor
    end: Tensor
    lane: Tensor


def _fill(launch: Launch, free: Free, band: int | None, keep: bool) -> tuple[_Ends, Kept]:
    """Fill in the tables of the pairs of a launch."""
    n, numbers, device = launch.n, launch.numbers, launch.pairs.letters.device
    tasks = launch.n_groups * launch.strips
    steps = -(-(launch.rows + launch.lanes - 1) // CHUNK) * CHUNK * keep
    grid = min(tasks, _RESIDENT * multiprocessors(device))
    parts = -(-launch.width // 16) * (numbers.source == PROFILE)
    counters = torch.zeros(1 + tasks, dtype=torch.int32, device=device)

    def empty(*shape: int) -> Tensor:
        if 0 in shape:
            return counters  # which is there, for what is not read
        return torch.empty(shape, dtype=torch.int32, device=device)

    ends = _Ends(*(empty(launch.strips, n) for _ in _Ends._fields))
    kept = Kept(
        empty(tasks, steps, LANES, 2), empty(tasks, steps // CHUNK, LANES, 2, launch.columns)
    )
    with torch.cuda.device_of(launch.pairs.letters):
        _alignment_fwd_kernel[(grid,)](
            *launch.pairs,
            numbers.scores,
            empty(grid, 2, numbers.letters * parts, LANES, 4),
            counters,
            counters[1:],
            empty(launch.n_groups * launch.per_program, launch.rows * (launch.strips > 1), 2),
            *kept,
            *ends,
            n,
            tasks,
            numbers.letters,
            launch.lanes,
            launch.strips,
            launch.rows,
            steps,
            *numbers.constants,
            numbers.top_slope,
            band or 0,
            MODE=Mode(
                source=numbers.source,
                width=launch.width,
                columns=launch.columns,
                linear=numbers.cost == 0,
                local=free.anywhere,
                query_begin=free.query_begin,
                query_end=free.query_end,
                target_end=free.target_end,
                banded=band is not None,
                strips=launch.strips > 1,
                keep=keep,
                packed=launch.packed,
                lanes=LANES,
                chunk=CHUNK,
                target=lanes.target(),
            ),
            num_warps=1,
        )
    return ends, kept


def alignment(
    pairs: Pairs,
    matrix: Tensor,
    gaps: Gaps,
    free: Free = GLOBAL,
    *,
    band: int | None = None,
    traceback: bool = False,
) -> Aligned:
    """Align pairs of sequences on a GPU. What comes of it is what `reference.alignment` gives.

    Parameters
    ----------
    pairs : Pairs
        Sequences on a GPU; some may be empty.
    matrix : int64 [A, A]
        Symmetric, on the CPU: scores of two letters that face each other.
    gaps : Gaps
        Costs of gaps.
    free : Free
        What costs nothing; with nothing free the alignment is global.
    band : int, optional
        Use only cells with ``|i - j| <= band``.
    traceback : bool
        Whether to find the alignments too, and not only their scores.

    Returns
    -------
    Aligned

    Raises
    ------
    InputError
        If scores may not fit in 32 bits.
    BackendError
        If the sequences do not lie on a GPU.
    """
    check_device(pairs.letters)
    device = pairs.letters.device
    free = Free(anywhere=True) if free.anywhere else free
    if not len(pairs.query_start):
        return _nothing(device, traceback)
    exact = scheme(matrix, gaps, free, MATRIX, device).scores
    halves = lanes.packs(pairs.letters)
    every = list(launches(pairs, matrix, gaps, free, halves, band is not None))
    every.sort(key=lambda launch: launch.n, reverse=True)
    fits = sum(_memory_of_group(each, traceback) * each.n_groups for each in every) <= _BUDGET
    scores, routes = [], []
    with side_by_side(pairs.letters, len(every) if fits else 1) as streams:
        for launch, stream in zip(every, streams, strict=False):
            groups = launch.n_groups if fits else _BUDGET // _memory_of_group(launch, traceback)
            with stream:
                for part in launch.split(max(1, groups) * launch.per_program):
                    ends, kept = _fill(part, free, band, traceback)
                    found = _found(part.pairs, ends, gaps, free)
                    scores.append(found.score)
                    if traceback:
                        route = paths(part, exact, free, band, kept, *found)
                        routes.append(route if fits else route.dense())
    orders = [launch.order for launch in every if launch.order is not None]
    order = torch.cat(orders) if orders else None
    score = torch.cat(scores)
    if order is not None:
        score = torch.empty_like(score).index_copy_(0, order, score)
    if not traceback:
        return Aligned(score, None, None, None)
    whole = Paths.joined(routes)
    if order is not None:
        whole = whole.in_order(order)
    return Aligned(score, whole.begin, whole.end, whole.unpacked())


def _nothing(device: torch.device, traceback: bool) -> Aligned:
    """Of no pairs."""
    none = torch.empty(0, 2, dtype=torch.int32, device=device)
    if not traceback:
        return Aligned(none[:, 0], None, None, None)
    start = torch.zeros(1, dtype=torch.int64, device=device)
    return Aligned(none[:, 0], none, none, Runs(start, none[:, 0].byte(), none[:, 0]))


def _memory_of_group(launch: Launch, keep: bool) -> int:
    """Bytes to work with for the pairs of a program."""
    steps = launch.rows + launch.lanes + CHUNK
    numbers = 1 + 2 * launch.rows * (launch.strips > 1) * launch.per_program
    numbers += keep * launch.strips * steps * LANES * (2 + 2 * launch.columns // CHUNK)
    numbers += keep * launch.per_program * launch.most_runs
    return 4 * numbers


def _found(pairs: Pairs, ends: _Ends, gaps: Gaps, free: Free) -> _Found:
    """What a launch has found, and what sequences without letters have."""
    length = torch.stack([pairs.query_length, pairs.target_length], 1).int()
    if not (free.query_end or free.target_end or free.anywhere):
        return _Found(ends.score[0], length, torch.full_like(ends.score[0], -1))
    score, row, lane = ends.best()
    n, m = length.unbind(1)
    letters = n + m
    begins = torch.where(n > 0, free.query_begin, free.target_begin)
    stops = torch.where(n > 0, free.query_end, free.target_end) | free.anywhere
    cost = torch.where(begins | stops | (letters == 0), 0, gaps.open + gaps.extend * (letters - 1))
    empty = n * m == 0
    score = torch.where(empty, -cost, score)
    end = torch.stack([row, torch.zeros_like(row)], 1)
    end = torch.where(empty[:, None], torch.where(stops[:, None], 0, length), end)
    return _Found(score, end, torch.where(empty | (row == 0), -1, lane))
