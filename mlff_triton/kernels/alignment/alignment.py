"""Pairwise alignment of many sequences with affine gaps, on a GPU.

    H(i, j) = max(H(i - 1, j - 1) + s(a_i, b_j), E(i, j), F(i, j))
    E(i, j) = max(H(i, j - 1) - open, E(i, j - 1) - extend)
    F(i, j) = max(H(i - 1, j) - open, F(i - 1, j) - extend)

(S. Needleman and C. Wunsch, https://doi.org/10.1016/0022-2836(70)90057-4; O. Gotoh,
https://doi.org/10.1016/0022-2836(82)90398-9.) `plan` sorts the pairs into buckets, `sweep` fills in
the tables of a bucket, and `traceback` follows the alignments back through the tables.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.alignment import lanes
from mlff_triton.kernels.alignment.arguments import Ends
from mlff_triton.kernels.alignment.plan import (
    DEFAULT_TILING,
    LANES,
    MATRIX,
    Bucket,
    Tiling,
    buckets,
    scheme,
)
from mlff_triton.kernels.alignment.streams import side_by_side
from mlff_triton.kernels.alignment.sweep import sweep
from mlff_triton.kernels.alignment.traceback import Paths, trace
from mlff_triton.kernels.alignment.types import GLOBAL, Aligned, Free, Gaps, Pairs, Runs
from mlff_triton.kernels.common.checks import check_device

_FAR = 2**31 - 1


def alignment(
    pairs: Pairs,
    matrix: Tensor,
    gaps: Gaps,
    free: Free = GLOBAL,
    *,
    band: int | None = None,
    traceback: bool = False,
    tiling: Tiling = DEFAULT_TILING,
    memory_limit: int = 3 * 2**30,
) -> Aligned:
    """Align pairs of sequences on a GPU, with the same results as `reference.alignment`.

    Parameters
    ----------
    pairs : Pairs
        Sequences on a GPU. Some may be empty.
    matrix : int64 [A, A]
        Symmetric substitution matrix, on the CPU.
    gaps : Gaps
        Gap penalties.
    free : Free
        Ends without gap penalties. By default, the alignment is global. If neither sequence is
        empty, at least one residue or base of each precedes a free end, as in parasail.
    band : int, optional
        Use only cells with ``abs(i - j) <= band``.
    traceback : bool
        If True, return alignments as well as scores.
    tiling : Tiling
        Sizes to divide the work into. They do not change the results.
    memory_limit : int
        Bytes of working memory beyond which the work is done in several parts.

    Returns
    -------
    Aligned

    Raises
    ------
    InputError
        If scores may not fit in 32 bits.
    BackendError
        If the sequences are not on a GPU.
    """
    check_device(pairs.letters)
    device = pairs.letters.device
    free = Free(anywhere=True) if free.anywhere else free
    if not len(pairs.query_start):
        return _empty(device, traceback)
    exact = scheme(matrix, gaps, free, MATRIX, device).scores
    packs = lanes.packs(pairs.letters) and band is None
    every = list(buckets(pairs, matrix, gaps, free, packs=packs, tiling=tiling))
    every.sort(key=lambda bucket: bucket.n, reverse=True)
    bytes_of_group = [_bytes_of_group(bucket, tiling.chunk, traceback) for bucket in every]
    needed = sum(size * bucket.n_groups for size, bucket in zip(bytes_of_group, every, strict=True))
    fits = needed <= memory_limit
    scores, paths = [], []
    with side_by_side(pairs.letters, len(every) if fits else 1) as streams:
        for bucket, size, stream in zip(every, bytes_of_group, streams, strict=False):
            groups = bucket.n_groups if fits else memory_limit // size
            with stream:
                for part in bucket.split(max(1, groups) * bucket.per_program):
                    ends, checkpoints = sweep(part, free, band, tiling.chunk, keep=traceback)
                    found = _best_ends(part.pairs, ends, gaps, free)
                    scores.append(found.score)
                    if traceback:
                        path = trace(part, exact, free, band, tiling.chunk, checkpoints, *found)
                        paths.append(path if fits else path.dense())
    orders = [bucket.order for bucket in every if bucket.order is not None]
    order = torch.cat(orders) if orders else None
    score = torch.cat(scores)
    if order is not None:
        score = torch.empty_like(score).index_copy_(0, order, score)
    if not traceback:
        return Aligned(score, None, None, None)
    joined = Paths.joined(paths)
    if order is not None:
        joined = joined.in_order(order)
    return Aligned(score, joined.begin, joined.end, joined.unpacked())


def _empty(device: torch.device, traceback: bool) -> Aligned:
    """Return the result of no pairs."""
    none = torch.empty(0, 2, dtype=torch.int32, device=device)
    if not traceback:
        return Aligned(none[:, 0], None, None, None)
    start = torch.zeros(1, dtype=torch.int64, device=device)
    return Aligned(none[:, 0], none, none, Runs(start, none[:, 0].byte(), none[:, 0]))


def _bytes_of_group(bucket: Bucket, chunk: int, keep: bool) -> int:
    """Return the working memory in bytes for the pairs of one program."""
    steps = bucket.rows + bucket.lanes + chunk
    words = 1 + 2 * bucket.rows * (bucket.strips > 1) * bucket.per_program
    words += keep * bucket.strips * steps * LANES * (2 + 2 * bucket.columns // chunk)
    words += keep * bucket.per_program * bucket.max_runs
    return 4 * words


class _BestEnds(NamedTuple):
    """Scores and ends of the best alignments of n pairs.

    Attributes
    ----------
    score : int32 [n]
        Scores.
    end : int32 [n, 2]
        Positions of query and target before the end; the traceback searches for the target's where
        there is a lane.
    lane : int32 [n]
        Lane whose columns contain the end, or -1.
    """

    score: Tensor
    end: Tensor
    lane: Tensor


def _best_ends(pairs: Pairs, ends: Ends, gaps: Gaps, free: Free) -> _BestEnds:
    """Reduce the ends of all strips, and fill in those of pairs with an empty sequence.

    Of equal scores, the first row wins, then the first lane.
    """
    length = torch.stack([pairs.query_length, pairs.target_length], 1).int()
    if not (free.query_end or free.target_end or free.anywhere):
        return _BestEnds(ends.score[0], length, torch.full_like(ends.score[0], -1))
    score = ends.score.amax(0)
    row = ends.row.where(ends.score == score, _FAR).amin(0)
    lane = ends.lane.where((ends.score == score) & (ends.row == row), _FAR).amin(0)
    n, m = length.unbind(1)
    gap = n + m  # length of the only gap if one sequence is empty
    begins = torch.where(n > 0, free.query_begin, free.target_begin)
    stops = torch.where(n > 0, free.query_end, free.target_end) | free.anywhere
    cost = torch.where(begins | stops | (gap == 0), 0, gaps.open + gaps.extend * (gap - 1))
    empty = n * m == 0
    score = torch.where(empty, -cost, score)
    end = torch.stack([row, torch.zeros_like(row)], 1)
    end = torch.where(empty[:, None], torch.where(stops[:, None], 0, length), end)
    return _BestEnds(score, end, torch.where(empty | (row == 0), -1, lane))
