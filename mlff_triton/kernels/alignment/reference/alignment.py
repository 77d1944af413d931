"""Pairwise alignment with affine gaps, row by row, in plain PyTorch.

    H(i, j) = max(H(i - 1, j - 1) + s(a_i, b_j), E(i, j), F(i, j))
    E(i, j) = max(H(i, j - 1) - open, E(i, j - 1) - extend)
    F(i, j) = max(H(i - 1, j) - open, F(i - 1, j) - extend)

(S. Needleman and C. Wunsch, https://doi.org/10.1016/0022-2836(70)90057-4; O. Gotoh,
https://doi.org/10.1016/0022-2836(82)90398-9.) Rows i are letters of the query ``a``, columns j
those of the target ``b``; E ends with letters of the target alone, F with letters of the query
alone. As opening a gap costs no less than extending one, E of a whole row is a running maximum of
what does not end with such a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.types.sequence_pairs import (
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

# How a cell is reached: a move, plus bits that say where gaps begin.
STOP, DIAGONAL, LEFT, UP = range(4)
OPENS_LEFT, OPENS_UP = 4, 8

_NEVER = -(2**40)  # less than any score
_ENDED = 255  # no operation
_CELLS_OF_MOVES = 2**28  # bytes of moves at a time
_CELLS_OF_ROW = 2**21  # cells of a row of all pairs at a time


def alignment(
    pairs: Pairs,
    matrix: Tensor,
    gaps: Gaps,
    free: Free = GLOBAL,
    *,
    band: int | None = None,
    traceback: bool = False,
) -> Aligned:
    """Align pairs of sequences.

    Of several ends that are equally good, the one with the fewest letters of the query is taken,
    then of the target. From there back, a letter against a letter goes before a deletion, and that
    before an insertion; a gap is left as soon as it can have begun.

    Parameters
    ----------
    pairs : Pairs
        Sequences; some may be empty.
    matrix : int64 [A, A]
        Symmetric, on the CPU: scores of two letters that face each other.
    gaps : Gaps
        Costs of gaps.
    free : Free
        What costs nothing; with nothing free the alignment is global. If both sequences have
        letters, a free end has some of both before it, as in parasail.
    band : int, optional
        Use only cells with ``|i - j| <= band``, i and j being how many letters of query and target
        precede them. The caller sees to it that this leaves an alignment.
    traceback : bool
        Whether to find the alignments too, and not only their scores.

    Returns
    -------
    Aligned
    """
    tables = _Tables(matrix.to(pairs.letters.device), gaps, free, band)
    order, scores, begins, ends, runs = [], [], [], [], []
    for chosen in _portions(pairs, traceback):
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
    place = torch.cat(order).argsort()
    score = torch.cat(scores)[place].int()
    if not traceback:
        return Aligned(score, None, None, None)
    begin, end = (torch.cat(parts)[place].int() for parts in (begins, ends))
    return Aligned(score, begin, end, arrange_runs(join_runs(runs), place))


def _portions(pairs: Pairs, traceback: bool) -> Iterator[Tensor]:
    """Indices of pairs that are of similar lengths and whose tables fit in memory together."""
    lengths = torch.stack([pairs.query_length, pairs.target_length], 1).cpu()
    order = lengths[:, 1].argsort(stable=True)
    order = order[lengths[order, 0].argsort(stable=True)]
    first, rows, columns = 0, 1, 1
    for last, (a, b) in enumerate((lengths[order] + 1).tolist()):
        rows, columns = max(rows, a), max(columns, b)
        row = (last + 1 - first) * columns
        if last > first and (row > _CELLS_OF_ROW or traceback * row * rows > _CELLS_OF_MOVES):
            yield order[first:last].to(pairs.letters.device)
            first, rows, columns = last, a, b
    yield order[first:].to(pairs.letters.device)


class _Sequences(NamedTuple):
    """Codes int64 [n, L], zero past the ends, and lengths [n]."""

    letters: Tensor
    lengths: Tensor


def _padded(pairs: Pairs, chosen: Tensor) -> tuple[_Sequences, _Sequences]:
    def gathered(start: Tensor, length: Tensor) -> _Sequences:
        start, length = start[chosen, None], length[chosen]
        longest = int(length.max()) if len(length) else 0
        place = torch.arange(longest, device=start.device)
        past = place >= length[:, None]
        letters = pairs.letters[(start + place).masked_fill(past, 0)].long()
        return _Sequences(letters.masked_fill(past, 0), length)

    return (
        gathered(pairs.query_start, pairs.query_length),
        gathered(pairs.target_start, pairs.target_length),
    )


class _Tables(NamedTuple):
    """What the tables of all pairs have in common."""

    matrix: Tensor
    gaps: Gaps
    free: Free
    band: int | None

    def fill(
        self, queries: _Sequences, targets: _Sequences, moves: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Best scores int64 [n] and their ends [n, 2]; and `moves` uint8 [n, La + 1, Lb + 1]."""
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
        best.see(0, row, past)
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
            best.see(i, row, past)
            if moves is not None:
                how = torch.full_like(moves[:, i, 1:], UP)
                how[row[:, 1:] == deletion] = LEFT
                how[row[:, 1:] == diagonal] = DIAGONAL
                if free.anywhere:
                    how[row[:, 1:] == 0] = STOP
                how += OPENS_UP * (insertion == opened).byte()
                how += OPENS_LEFT * (deletion == row[:, :-1] - gaps.open).byte()
                moves[:, i, 1:] = how
        return best.score, best.end

    def _outside(self, i: int, column: Tensor) -> Tensor:
        """Columns of row i that the band leaves out."""
        if self.band is None:
            return torch.zeros_like(column, dtype=torch.bool)
        return (column - i).abs() > self.band

    def _edge(self, place: Tensor, free: bool) -> Tensor:
        """Scores of cells that have only a gap before them."""
        if free or self.free.anywhere:
            return torch.zeros_like(place)
        return -(self.gaps.open + self.gaps.extend * (place - 1)) * (place > 0)

    def _edge_moves(self, place: Tensor, gap: int, opens: int, free: bool) -> Tensor:
        if free or self.free.anywhere:
            return torch.full_like(place, STOP, dtype=torch.uint8)
        return (gap * (place > 0) + opens * (place == 1)).byte()


class _Best:
    """The best end so far of each pair; rows come in their order."""

    def __init__(self, free: Free, a_length: Tensor, b_length: Tensor) -> None:
        self._free, self._a_length, self._b_length = free, a_length, b_length
        self.score = torch.full_like(a_length, _NEVER)
        self.end = torch.zeros(len(a_length), 2, dtype=torch.int64, device=a_length.device)

    def see(self, i: int, row: Tensor, past: Tensor) -> None:
        """Row i [n, Lb + 1], of which columns that are past the end mean nothing."""
        free, column = self._free, torch.arange(row.shape[1], device=row.device)
        last_row = (self._a_length == i)[:, None]
        last_column = column == self._b_length[:, None]
        inside = ~past & (self._a_length >= i)[:, None]
        empty = (self._a_length * self._b_length == 0)[:, None]
        after = inside & (empty | ((column > 0) & (i > 0)))  # letters of both before it
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
    """Go back from the ends.

    Returns
    -------
    begin : int64 [n, 2]
        Where the alignments begin.
    operations : uint8 [n, L]
        From the last to the first, then `_ENDED`.
    """
    pair = torch.arange(len(moves), device=moves.device)
    i, j = end.clone().unbind(1)
    gap = torch.full_like(i, STOP)  # the one that has not begun yet
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
    """Runs of operations that come last first."""
    operations = operations.flip(1)
    present = operations != _ENDED
    first = present.clone()
    first[:, 1:] &= operations[:, 1:] != operations[:, :-1]
    places = first[present].nonzero()[:, 0]
    length = places.diff(append=present.sum()[None])
    return Runs(sums_before(first.sum(1)), operations[first], length.int())
