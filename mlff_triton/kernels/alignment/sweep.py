"""The sweep: a kernel that fills in the tables of alignments, a wavefront in every warp.

A lane keeps the columns of a few residues or bases of the target in registers, for two pairs of
sequences at a time. At each step it takes one row, that is, one residue or base of the query. The
lane to its right takes the same row one step later and receives the last column within the warp,
so that only sequences are read from memory. If the lanes of a program do not cover a target, the
target is split into strips, and programs pass the edges of strips on through memory.

Unless the alignment is local, cells hold ``H + extend (i + j)``. Extending a gap then costs
nothing, and opening one costs ``open - extend``. Shorter sequences are padded at their beginning,
so that all of them end in the last lane, column and row. Columns of padding equal the column before
the first residue or base, because of the scores of padding. In rows of padding, and after the last
row, a lane keeps its values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.alignment import lanes as instructions
from mlff_triton.kernels.alignment.arguments import Checkpoints, Ends, SweepMode
from mlff_triton.kernels.alignment.lane_steps import (
    FROM_PROFILE,
    FROM_TABLE,
    NEVER,
    LaneConstants,
    LanePosition,
    best_of_lanes,
    best_of_last_row,
    build_profile,
    column_scores,
    first_state,
    take_steps,
    target_codes,
)
from mlff_triton.kernels.alignment.lanes import block_of, joined, taken_apart
from mlff_triton.kernels.alignment.plan import LANES, PROFILE, Bucket
from mlff_triton.kernels.alignment.types import Free
from mlff_triton.kernels.common.hardware import multiprocessors

_RESIDENT = 16  # programs that a multiprocessor runs at a time


class LanePairs(NamedTuple):
    """The two pairs that each lane processes, with suffixes 0 and 1; equal if not packed."""

    position0: tl.tensor  # positions in the bucket
    position1: tl.tensor
    n0: tl.tensor  # query lengths
    n1: tl.tensor
    m0: tl.tensor  # target lengths
    m1: tl.tensor


@triton.jit
def _lane_constants(constants, MODE: tl.constexpr):
    """Repeat the constants in both halves of the registers."""
    LANES: tl.constexpr = MODE.lanes
    PACKED: tl.constexpr = MODE.packed
    ONE: tl.constexpr = 65537 if PACKED else 1
    zero = tl.zeros([LANES], tl.int32)
    return LaneConstants(
        joined(zero - constants.cost, zero - constants.cost, PACKED),
        joined(zero - constants.extend, zero - constants.extend, PACKED),
        zero + constants.cost * ONE,
        zero + constants.extend * ONE,
        zero + constants.lift * ONE,
        zero + constants.bias * ONE,
        zero + constants.open_left * ONE,
        constants.per_letter,
        constants.band,
    )


@triton.jit
def _load_lengths(pairs, n_pairs, slot, MODE: tl.constexpr):
    """Load the lengths of each lane's pairs; lanes beyond the last pair repeat that one."""
    position0 = slot * (1 + MODE.packed)
    position1 = position0 + MODE.packed
    pair0 = tl.minimum(position0, n_pairs - 1)
    pair1 = tl.minimum(position1, n_pairs - 1)
    n0 = tl.load(pairs.query_length + pair0).to(tl.int32)
    n1 = tl.load(pairs.query_length + pair1).to(tl.int32)
    m0 = tl.load(pairs.target_length + pair0).to(tl.int32)
    m1 = tl.load(pairs.target_length + pair1).to(tl.int32)
    return LanePairs(position0, position1, n0, n1, m0, m1), pair0, pair1


@triton.jit
def _load_scores(codes0, codes1, table, scores_ptr, profiles_ptr, n_letters, MODE: tl.constexpr):
    """Return the scores of the columns of both pairs, in the form of `lane_steps._row`."""
    LANES: tl.constexpr = MODE.lanes
    if MODE.source == FROM_PROFILE:
        lane = tl.arange(0, LANES)
        size = n_letters * ((MODE.columns + 15) // 16) * (LANES * 4)
        scores0 = profiles_ptr + tl.program_id(0).to(tl.int64) * (2 * size) + 4 * lane
        scores1 = scores0 + size
        tl.debug_barrier()
        build_profile(scores0, codes0, scores_ptr, n_letters, MODE)
        if MODE.packed:
            build_profile(scores1, codes1, scores_ptr, n_letters, MODE)
        tl.debug_barrier()
    else:
        scores0 = column_scores(codes0, table, scores_ptr, n_letters, MODE)
        scores1 = scores0
        if MODE.packed:
            scores1 = column_scores(codes1, table, scores_ptr, n_letters, MODE)
    return scores0, scores1


@triton.jit
def _save_state(states_ptr, state, task, begin, max_steps, MODE: tl.constexpr):
    """Store the state before a chunk in `Checkpoints.states`."""
    LANES: tl.constexpr = MODE.lanes
    COLUMNS: tl.constexpr = MODE.columns
    lane = tl.arange(0, LANES)
    chunk = task.to(tl.int64) * (max_steps // MODE.chunk) + begin // MODE.chunk
    at = (chunk * LANES + lane)[:, None] * (2 * COLUMNS)
    at = states_ptr + at + tl.arange(0, COLUMNS)[None, :]
    tl.store(at, block_of(state.h, LANES, COLUMNS))
    tl.store(at + COLUMNS, block_of(state.f, LANES, COLUMNS))


@triton.jit
def _wait_for_previous_strip(progress_ptr, task, strip, rows):
    """Wait until the previous strip has passed on a number of rows.

    The wait cannot deadlock. An atomic ticket hands out tasks in ascending order, and a strip waits
    only for the task just below its own. A program that has started therefore holds that task,
    either as its current one or as its next one, behind a lower task. It follows that the lowest
    unfinished task is the current task of a started program, and that it waits for nothing, because
    all lower tasks are finished. A started program stays resident until it ends and keeps being
    scheduled, on NVIDIA and AMD GPUs alike, so this task finishes, and by induction all others do.
    Programs that have not started hold no tasks, so neither the size of the grid nor the order in
    which programs start matters. A program is a single warp and the loop is uniform within it, so
    no lane waits for another lane of its own warp.

    The rows are visible after the wait. The previous strip stores its edge, passes a barrier of its
    program, and then publishes its progress with release semantics at the scope of the GPU. This
    function reads the progress with acquire semantics at the same scope, and only then is the edge
    loaded, past the L1 cache (``.cg``). On AMD GPUs (gfx942), Triton compiles the release to a
    write-back of the L2 cache (``buffer_wbl2 sc1``) and a wait for all stores of the wavefront
    (``s_waitcnt vmcnt(0)``), which covers every lane, as a program is one wavefront. It compiles
    the acquire to a load at device scope and an invalidation of the caches (``buffer_inv sc1``).
    """
    wanted = tl.where(strip > 0, rows, 0)
    before = progress_ptr + tl.maximum(task - 1, 0)
    passed = tl.atomic_add(before, 0, sem="acquire")
    while passed < wanted:
        passed = tl.atomic_add(before, 0, sem="acquire")


@triton.jit
def _publish_progress(progress_ptr, task, end, position):
    """Let the next strip, which is in `_wait_for_previous_strip`, use the rows before `end`."""
    tl.debug_barrier()
    rows = tl.maximum(tl.minimum(end - position.lanes + 1, position.rows), 0)
    tl.atomic_xchg(progress_ptr + task, rows, sem="release")


@triton.jit
def _take_all_steps(
    state,
    position,
    shortest,
    task,
    progress_ptr,
    states_ptr,
    max_steps,
    constants,
    MODE: tl.constexpr,
):
    """Take all steps of a task, in chunks if strips or the traceback need them.

    In steps before `slow`, lanes wait for their first row; from `fast` on, they may be done.
    """
    rows = position.rows
    lanes = position.lanes
    steps = rows + lanes - 1
    slow = tl.minimum(rows - shortest + lanes - 1, steps)
    fast = rows
    if MODE.source == FROM_TABLE and not (MODE.local or MODE.query_end or MODE.target_end):
        fast = steps  # what lanes compute after their last row is never read
    begin = 0
    while begin < steps:
        if MODE.keep or MODE.strips:
            end = tl.minimum(begin + MODE.chunk, steps)
        else:
            end = tl.where(begin < slow, slow, tl.where(begin < fast, fast, steps))
        if MODE.keep:
            _save_state(states_ptr, state, task, begin, max_steps, MODE)
        if MODE.strips:
            _wait_for_previous_strip(progress_ptr, task, position.strip, tl.minimum(end, rows))
        if (begin < slow) | (end > fast):
            state = take_steps(begin, end, position, state, constants, MODE, True)
        else:
            state = take_steps(begin, end, position, state, constants, MODE, False)
        if MODE.strips:
            _publish_progress(progress_ptr, task, end, position)
        begin = end
    return state


@triton.jit
def _store_end(ends, at, score, row, position, n_pairs):
    """Store the best end of one pair of each lane in a strip."""
    across = position.strip * position.lanes + position.rank
    LANES: tl.constexpr = position.rank.shape[0]
    score, row, lane = best_of_lanes(score, row, across, position.rank, position.lanes, LANES)
    chosen = (at < n_pairs) & (position.rank == 0)
    at = position.strip * n_pairs + at
    tl.store(ends.score + at, score, chosen)
    tl.store(ends.row + at, row, chosen)
    tl.store(ends.lane + at, lane, chosen)


@triton.jit
def _finish(
    ends, state, pairs, position, rightmost, lowest, bias, n_pairs, constants, MODE: tl.constexpr
):
    """Store the scores of a task's pairs, and with free ends the rows and lanes of their ends."""
    PACKED: tl.constexpr = MODE.packed
    per_letter = constants.per_letter
    if MODE.local or MODE.query_end or MODE.target_end:
        best = state.best if MODE.local else tl.where(rightmost, state.best, lowest)
        score0, score1 = taken_apart(best, PACKED)
        best0 = state.best0
        best1 = state.best1
        if not MODE.local:
            score0 -= per_letter * pairs.m0
            score1 -= per_letter * pairs.m1
        if MODE.target_end:
            ending = best_of_last_row(lowest, position, state, constants, MODE)
            ending0, ending1 = taken_apart(ending, PACKED)
            ending0 -= per_letter * pairs.n0
            ending1 -= per_letter * pairs.n1
            best0 = tl.where(ending0 > score0, pairs.n0, best0)
            best1 = tl.where(ending1 > score1, pairs.n1, best1)
            score0 = tl.maximum(score0, ending0)
            score1 = tl.maximum(score1, ending1)
        _store_end(ends, pairs.position0, score0 - bias, best0, position, n_pairs)
        if PACKED:
            _store_end(ends, pairs.position1, score1 - bias, best1, position, n_pairs)
    else:
        score0, score1 = taken_apart(state.h[MODE.width - 1] + constants.lift, PACKED)
        score0 -= bias + per_letter * (pairs.n0 + pairs.m0)
        score1 -= bias + per_letter * (pairs.n1 + pairs.m1)
        tl.store(ends.score + pairs.position0, score0, (pairs.position0 < n_pairs) & rightmost)
        if PACKED:
            tl.store(ends.score + pairs.position1, score1, (pairs.position1 < n_pairs) & rightmost)


# Values that change from batch to batch are not worth a compilation.
@triton.jit(do_not_specialize=["n_pairs", "n_tasks", "lanes", "max_rows", "max_steps"])
def _alignment_fwd_kernel(
    pairs,
    scores_ptr,
    profiles_ptr,
    ticket_ptr,
    progress_ptr,
    edges_ptr,
    checkpoints,
    ends,
    n_pairs,
    n_tasks,
    n_letters,
    lanes,
    strips,
    max_rows,
    max_steps,
    constants,
    MODE: tl.constexpr,
):
    """Fill in the tables of a bucket's pairs and store the best ends.

    Parameters
    ----------
    pairs : Pairs
        Sequences of the bucket, longest query first.
    scores_ptr : Tensor
        `Scheme.scores`.
    profiles_ptr : int32 [grid, 2, n_letters * ceil(width / 16), LANES, 4]
        Scratch memory for the scores of lanes, with source `PROFILE`.
    ticket_ptr : int32 [1]
        Next task to hand out, initially zero. A task is one strip of one group of pairs.
    progress_ptr : int32 [n_tasks]
        Rows that each task has passed to the next strip, initially zero.
    edges_ptr : int32 [slots, max_rows, 2]
        Values passed from strip to strip, each strip overwriting those of the previous one. A slot
        is the pairs that share lanes.
    checkpoints : Checkpoints
        Written with ``MODE.keep``.
    ends : Ends
        Written: `score` always; `row` and `lane` if the alignment has a free end.
    n_pairs, n_tasks, n_letters, lanes, strips : int
        Numbers of pairs, tasks and symbols of the alphabet, lanes per pair and strips per target.
    max_rows, max_steps : int
        Sizes of `edges_ptr` and of `Checkpoints.passed`.
    constants : Constants
        Gap penalties and offsets.
    MODE : SweepMode
        Compile-time options.

    Notes
    -----
    The grid is one-dimensional and of any size; programs of one warp take tasks until none is left.
    """
    LANES: tl.constexpr = MODE.lanes
    lane = tl.arange(0, LANES)
    rank = lane % lanes
    zero = tl.zeros([LANES], tl.int32)
    lane_constants = _lane_constants(constants, MODE)
    lowest = joined(zero - 32768, zero - 32768, True) if MODE.packed else zero + NEVER
    table = zero
    if MODE.source == FROM_TABLE:
        table = tl.load(scores_ptr + lane, lane <= n_letters, other=0)

    task = tl.atomic_add(ticket_ptr, 1)
    while task < n_tasks:
        next_task = tl.atomic_add(ticket_ptr, 1)
        group = task // strips
        strip = task % strips
        slot = group * (LANES // lanes) + lane // lanes
        of_lane, pair0, pair1 = _load_lengths(pairs, n_pairs, slot, MODE)
        rows = tl.max(tl.maximum(of_lane.n0, of_lane.n1), 0)
        shortest = tl.min(tl.minimum(of_lane.n0, of_lane.n1), 0)
        row0 = of_lane.n0 - rows - rank
        row1 = of_lane.n1 - rows - rank
        column0 = ((strip - strips) * lanes + rank) * MODE.width + of_lane.m0
        column1 = ((strip - strips) * lanes + rank) * MODE.width + of_lane.m1

        target0 = pairs.letters + tl.load(pairs.target_start + pair0) + column0
        target1 = pairs.letters + tl.load(pairs.target_start + pair1) + column1
        codes0 = target_codes(target0, column0, n_letters, MODE)
        codes1 = target_codes(target1, column1, n_letters, MODE)
        scores0, scores1 = _load_scores(
            codes0, codes1, table, scores_ptr, profiles_ptr, n_letters, MODE
        )
        edge = edges_ptr + (slot * 2).to(tl.int64) * max_rows
        passed = checkpoints.passed + task.to(tl.int64) * max_steps * (2 * LANES)
        position = LanePosition(
            rank,
            lanes,
            strip,
            rows,
            pairs.letters + tl.load(pairs.query_start + pair0) + row0,
            pairs.letters + tl.load(pairs.query_start + pair1) + row1,
            row0,
            row1,
            column0,
            column1,
            scores0,
            scores1,
            edge,
            passed,
        )
        state = first_state(
            constants.open_top, constants.top_slope, lowest, position, lane_constants, MODE
        )
        state = _take_all_steps(
            state,
            position,
            shortest,
            task,
            progress_ptr,
            checkpoints.states,
            max_steps,
            lane_constants,
            MODE,
        )
        rightmost = (rank == lanes - 1) & (strip == strips - 1)
        _finish(
            ends,
            state,
            of_lane,
            position,
            rightmost,
            lowest,
            constants.bias,
            n_pairs,
            lane_constants,
            MODE,
        )
        task = next_task


def sweep(
    bucket: Bucket, free: Free, band: int | None, chunk: int, *, keep: bool
) -> tuple[Ends, Checkpoints]:
    """Launch the sweep for a bucket.

    Parameters
    ----------
    bucket : Bucket
        Pairs and their layout.
    free : Free
        Ends without gap penalties.
    band : int or None
        Largest ``abs(i - j)`` of a cell.
    chunk : int
        Steps per tile.
    keep : bool
        If True, save checkpoints for the traceback.
    """
    n, scheme, device = bucket.n, bucket.scheme, bucket.pairs.letters.device
    tasks = bucket.n_groups * bucket.strips
    steps = -(-(bucket.rows + bucket.lanes - 1) // chunk) * chunk * keep
    grid = min(tasks, _RESIDENT * multiprocessors(device))
    parts = -(-bucket.width // 16) * (scheme.source == PROFILE)
    counters = torch.zeros(1 + tasks, dtype=torch.int32, device=device)

    def empty(*shape: int) -> Tensor:
        if 0 in shape:
            return counters  # never read, but a kernel needs a pointer
        return torch.empty(shape, dtype=torch.int32, device=device)

    ends = Ends(*(empty(bucket.strips, n) for _ in Ends._fields))
    checkpoints = Checkpoints(
        empty(tasks, steps, LANES, 2), empty(tasks, steps // chunk, LANES, 2, bucket.columns)
    )
    with torch.cuda.device_of(bucket.pairs.letters):
        _alignment_fwd_kernel[(grid,)](
            bucket.pairs,
            scheme.scores,
            empty(grid, 2, scheme.letters * parts, LANES, 4),
            counters,
            counters[1:],
            empty(bucket.n_groups * bucket.per_program, bucket.rows * (bucket.strips > 1), 2),
            checkpoints,
            ends,
            n,
            tasks,
            scheme.letters,
            bucket.lanes,
            bucket.strips,
            bucket.rows,
            steps,
            scheme.constants._replace(band=band or 0, left_slope=None),
            MODE=SweepMode(
                width=bucket.width,
                columns=bucket.columns,
                packed=bucket.packed,
                local=free.anywhere,
                query_begin=free.query_begin,
                target_end=free.target_end,
                banded=band is not None,
                lanes=LANES,
                chunk=chunk,
                source=scheme.source,
                linear=scheme.constants.cost == 0,
                query_end=free.query_end,
                strips=bucket.strips > 1,
                keep=keep,
                target=instructions.target(),
            ),
            num_warps=1,
        )
    return ends, checkpoints
