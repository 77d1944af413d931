"""Pairwise alignment with affine gaps, row by row, in plain PyTorch.

    H(i, j) = max(H(i - 1, j - 1) + s(a_i, b_j), E(i, j), F(i, j))
    E(i, j) = max(H(i, j - 1) - open, E(i, j - 1) - extend)
    F(i, j) = max(H(i - 1, j) - open, F(i - 1, j) - extend)

(S. Needleman and C. Wunsch, https://doi.org/10.1016/0022-2836(70)90057-4; O. Gotoh,
https://doi.org/10.1016/0022-2836(82)90398-9.) Rows i are positions of the query ``a``, and columns
j are positions of the target ``b``. E ends with a gap in the query (a deletion), and F with a gap
in the target (an insertion). Because opening a gap costs no less than extending one, E of a whole
row is a running maximum over alignments that do not end with a deletion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.alignment.types import (
    DELETION,
    GLOBAL,
    INSERTION,
    MATCH,
    MISMATCH,
    Aligned,
    Free,
    Gaps,
    Pairs,
    Runs,
    arrange_runs,
    join_runs,
    sums_before,
)

# Traceback codes: the move that reaches a cell, plus bits set where a gap opens.
STOP, DIAGONAL, LEFT, UP = range(4)
OPENS_LEFT, OPENS_UP = 4, 8

_NEVER = -(2**40)  # less than any score
_ENDED = 255  # no operation


def alignment(
    pairs: Pairs,
    matrix: Tensor,
    gaps: Gaps,
    free: Free = GLOBAL,
    *,
    band: int | None = None,
    traceback: bool = False,
    cells_per_table: int = 2**28,
    cells_per_row: int = 2**21,
) -> Aligned:
    """Align pairs of sequences.

    Of equally good ends, the one with the smallest position in the query is chosen, then in the
    target. Going back from there, a match or mismatch is preferred to a deletion, and a deletion to
    an insertion. A gap ends as soon as it can have opened.

    The caller ensures that the band contains an alignment. Most parameters and the result are those
    of `mlff_triton.kernels.alignment.alignment.alignment`.

    Parameters
    ----------
    cells_per_table : int
        Cells of the traceback tables that are held in memory at a time, one byte each.
    cells_per_row : int
        Cells per row of all tables that are processed at a time.
    """
    tables = _Tables(matrix.to(pairs.letters.device), gaps, free, band)
    order, scores, begins, ends, runs = [], [], [], [], []
    for chosen in _portions(pairs, cells_per_table if traceback else None, cells_per_row):
        queries, targets = _padded(pairs, chosen)
        shape = (len(chosen), queries.letters.shape[1] + 1, targets.letters.shape[1] + 1)
        moves = chosen.new_empty(shape, dtype=torch.uint8) if traceback else None
        score, end = tables.fill(queries, targets, moves)
        order.append(chosen)
        scores.append(score)
        ends.append(end)
        if moves is not None:
            begin, operations = _trace(moves, end, queries.letters, targets.letters)
            begins.append(begin)
            runs.append(_encoded(operations))
    position = torch.cat(order).argsort()
    score = torch.cat(scores)[position].int()
    if not traceback:
        return Aligned(score, None, None, None)
    begin, end = (torch.cat(parts)[position].int() for parts in (begins, ends))
    return Aligned(score, begin, end, arrange_runs(join_runs(runs), position))


def _portions(pairs: Pairs, cells_per_table: int | None, cells_per_row: int) -> Iterator[Tensor]:
    """Yield indices of pairs of similar lengths whose tables fit in memory together."""
    lengths = torch.stack([pairs.query_length, pairs.target_length], 1).cpu()
    order = lengths[:, 1].argsort(stable=True)
    order = order[lengths[order, 0].argsort(stable=True)]
    first, rows, columns = 0, 1, 1
    for last, (a, b) in enumerate((lengths[order] + 1).tolist()):
        rows, columns = max(rows, a), max(columns, b)
        row = (last + 1 - first) * columns
        is_high = cells_per_table is not None and row * rows > cells_per_table
        if last > first and (row > cells_per_row or is_high):
            yield order[first:last].to(pairs.letters.device)
            first, rows, columns = last, a, b
    yield order[first:].to(pairs.letters.device)


class _Sequences(NamedTuple):
    """Codes int64 [n, L], zero after each sequence, and lengths int64 [n]."""

    letters: Tensor
    lengths: Tensor


def _padded(pairs: Pairs, chosen: Tensor) -> tuple[_Sequences, _Sequences]:
    """Gather the queries and targets of the chosen pairs."""

    def gathered(start: Tensor, length: Tensor) -> _Sequences:
        start, length = start[chosen, None], length[chosen]
        longest = int(length.max()) if len(length) else 0
        position = torch.arange(longest, device=start.device)
        past = position >= length[:, None]
        letters = pairs.letters[(start + position).masked_fill(past, 0)].long()
        return _Sequences(letters.masked_fill(past, 0), length)

    return (
        gathered(pairs.query_start, pairs.query_length),
        gathered(pairs.target_start, pairs.target_length),
    )


class _Tables(NamedTuple):
    """Scoring of the tables, the same for all pairs."""

    matrix: Tensor
    gaps: Gaps
    free: Free
    band: int | None

    def fill(
        self, queries: _Sequences, targets: _Sequences, moves: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the best scores int64 [n] and their ends [n, 2], and fill in `moves`.

        `moves` is uint8 [n, La + 1, Lb + 1], or None without a traceback.
        """
        (a, a_length), (b, b_length) = queries, targets
        gaps, free = self.gaps, self.free
        column = torch.arange(b.shape[1] + 1, device=b.device)
        line = torch.arange(a.shape[1] + 1, device=a.device)
        past = column > b_length[:, None]  # [n, Lb + 1]
        row = self._edge(column, free.target_begin).masked_fill(self._outside(0, column), _NEVER)
        row = row.repeat(len(b), 1)
        side = self._edge(line, free.query_begin).tolist()
        insertion = torch.full_like(row[:, 1:], _NEVER)
        best = _Best(free, a_length, b_length)
        best.update(0, row, past)
        if moves is not None:
            moves[:, :, 0] = self._edge_moves(line, UP, OPENS_UP, free.query_begin)
            moves[:, 0] = self._edge_moves(column, LEFT, OPENS_LEFT, free.target_begin)
        for i in range(1, a.shape[1] + 1):
            outside = self._outside(i, column)
            diagonal = row[:, :-1] + self.matrix[a[:, i - 1, None], b]
            opened = row[:, 1:] - gaps.open
            insertion = torch.maximum(opened, insertion - gaps.extend)
            reached = torch.maximum(diagonal, insertion)
            if free.anywhere:
                reached = reached.clamp(min=0)
            reached = torch.cat([torch.full_like(row[:, :1], side[i]), reached], 1)
            reached = reached.masked_fill(outside, _NEVER)
            leading = (reached + gaps.extend * column).cummax(1).values[:, :-1]
            deletion = leading - gaps.open - gaps.extend * column[:-1]
            row = torch.cat([reached[:, :1], torch.maximum(reached[:, 1:], deletion)], 1)
            row = row.masked_fill(outside, _NEVER)
            best.update(i, row, past)
            if moves is not None:
                move = torch.full_like(moves[:, i, 1:], UP)
                move[row[:, 1:] == deletion] = LEFT
                move[row[:, 1:] == diagonal] = DIAGONAL
                if free.anywhere:
                    move[row[:, 1:] == 0] = STOP
                move += OPENS_UP * (insertion == opened).byte()
                move += OPENS_LEFT * (deletion == row[:, :-1] - gaps.open).byte()
                moves[:, i, 1:] = move
        return best.score, best.end

    def _outside(self, i: int, column: Tensor) -> Tensor:
        """Return True for the columns of row i outside the band."""
        if self.band is None:
            return torch.zeros_like(column, dtype=torch.bool)
        return (column - i).abs() > self.band

    def _edge(self, length: Tensor, free: bool) -> Tensor:
        """Return the scores of cells that only a gap of this length precedes."""
        if free or self.free.anywhere:
            return torch.zeros_like(length)
        return -(self.gaps.open + self.gaps.extend * (length - 1)) * (length > 0)

    def _edge_moves(self, length: Tensor, gap: int, opens: int, free: bool) -> Tensor:
        """Return the moves to cells that only a gap of this length precedes."""
        if free or self.free.anywhere:
            return torch.full_like(length, STOP, dtype=torch.uint8)
        return (gap * (length > 0) + opens * (length == 1)).byte()


class _Best:
    """Best end of each pair in the rows seen so far, from top to bottom."""

    def __init__(self, free: Free, a_length: Tensor, b_length: Tensor) -> None:
        self._free, self._a_length, self._b_length = free, a_length, b_length
        self.score = torch.full_like(a_length, _NEVER)
        self.end = torch.zeros(len(a_length), 2, dtype=torch.int64, device=a_length.device)

    def update(self, i: int, row: Tensor, past: Tensor) -> None:
        """Take row i [n, Lb + 1] into account, except its columns past the end of the target."""
        free, column = self._free, torch.arange(row.shape[1], device=row.device)
        last_row = (self._a_length == i)[:, None]
        last_column = column == self._b_length[:, None]
        inside = ~past & (self._a_length >= i)[:, None]
        empty = (self._a_length * self._b_length == 0)[:, None]
        after = inside & (empty | ((column > 0) & (i > 0)))  # after a position of both sequences
        ends = inside if free.anywhere else last_row & last_column
        if free.target_end:
            ends = ends | (last_row & after)
        if free.query_end:
            ends = ends | (last_column & after)
        score, j = torch.where(ends, row, _NEVER).max(1)
        better = score > self.score
        self.score = torch.where(better, score, self.score)
        self.end[better] = torch.stack([torch.full_like(j, i), j], 1)[better]


def _trace(moves: Tensor, end: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Trace alignments back from their ends.

    Returns
    -------
    begin : int64 [n, 2]
        Beginnings of the alignments.
    operations : uint8 [n, L]
        CIGAR operations from last to first, then `_ENDED`.
    """
    pair = torch.arange(len(moves), device=moves.device)
    i, j = end.clone().unbind(1)
    gap = torch.full_like(i, STOP)  # direction of the current gap until its opening is found
    operations = [moves.new_empty(0, len(moves))]
    while True:
        move = moves[pair, i, j].long()
        step = torch.where(gap == STOP, move & 3, gap)
        if not step.any():
            break
        diagonal = step == DIAGONAL
        opens = (move & torch.where(step == LEFT, OPENS_LEFT, OPENS_UP)) > 0
        gap = torch.where(opens | diagonal, STOP, step)
        i = i - (diagonal | (step == UP)).long()
        j = j - (diagonal | (step == LEFT)).long()
        operation = torch.full_like(moves[:, 0, 0], _ENDED)
        operation[step == LEFT], operation[step == UP] = DELETION, INSERTION
        (at,) = diagonal.nonzero(as_tuple=True)
        operation[at] = torch.where(a[at, i[at]] == b[at, j[at]], MATCH, MISMATCH).byte()
        operations.append(operation[None])
    return torch.stack([i, j], 1), torch.cat(operations).T


def _encoded(operations: Tensor) -> Runs:
    """Run-length encode operations given from last to first."""
    operations = operations.flip(1)
    present = operations != _ENDED
    first = present.clone()
    first[:, 1:] &= operations[:, 1:] != operations[:, :-1]
    begins = first[present].nonzero()[:, 0]
    length = begins.diff(append=present.sum()[None])
    return Runs(sums_before(first.sum(1)), operations[first], length.int())
