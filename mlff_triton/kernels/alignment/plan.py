"""How pairs of sequences are laid out over lanes and launches, and which numbers they need."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.types.sequence_pairs import PAD, Free, Gaps, Pairs

# Where kernels find what two letters score.
TABLE = 0  # in registers, of a column: bytes for the four letters that a row can have
PROFILE = 1  # in memory, of a lane's columns: bytes for each letter
MATRIX = 2  # in the matrix itself: any numbers

_BYTE, _HALF, _WORD = 127, 2**15 - 1, 2**29
LANES = 32  # of a program

_WIDTHS = (8, 12, 16, 20, 24, 28, 32)  # columns of a lane
_WIDEST_PROFILE = 16  # columns of a lane that are read at once
_LANES_OF_PAIR = (4, 8, 16, 32)
_STEP_COST = 5  # columns whose time it takes to pass a row on
_BASES = 16  # letters of a matrix of nucleotides at most, the first four of which are common
_MANY = 2048  # pairs that fill a GPU without strips


class Scheme(NamedTuple):
    """The numbers of an alignment as kernels calculate them.

    Attributes
    ----------
    source : int
        `TABLE`, `PROFILE` or `MATRIX`.
    scores : Tensor
        What letters score, a row for each letter of the target and one for pads: int32 [A + 1] with
        a byte for each letter, uint8 [A + 1, A] or int32 [A + 1, A].
    cost, extend : int
        Of opening and of extending a gap.
    per_letter : int
        What each letter before a cell adds to it.
    lift : int
        What bytes hold more than the scores, so that none is negative.
    bias : int
        What cells hold more, so that nothing is negative.
    open_left, open_top, left_slope, top_slope : int
        What cells left of the first column, and above the first row, have less from the first
        letter on, and what each letter adds.
    highest : int
        Score of a letter, or zero.
    """

    source: int
    scores: Tensor
    cost: int
    extend: int
    per_letter: int
    lift: int
    bias: int
    open_left: int
    open_top: int
    left_slope: int
    top_slope: int
    highest: int

    @property
    def constants(self) -> tuple[int, ...]:
        """What kernels of both directions are given, in this order."""
        gaps = self.cost, self.extend, self.per_letter
        return *gaps, self.lift, self.bias, self.open_left, self.open_top

    @property
    def letters(self) -> int:
        """How many there are."""
        return len(self.scores) - 1


def scheme(matrix: Tensor, gaps: Gaps, free: Free, source: int, device: torch.device) -> Scheme:
    """Numbers for scores that come from a source, or from the matrix if they do not fit there."""
    return _scheme(tuple(map(tuple, matrix.tolist())), gaps, free, source, device)


@lru_cache(maxsize=64)
def _scheme(
    rows: tuple[tuple[int, ...], ...], gaps: Gaps, free: Free, source: int, device: torch.device
) -> Scheme:
    matrix = torch.tensor(rows)
    letters = len(matrix)
    if free.anywhere:
        cost, extend, per_letter, pad = gaps.open, gaps.extend, 0, 0
    else:
        cost, extend, per_letter = gaps.open - gaps.extend, 0, gaps.extend
        pad = per_letter if free.query_begin else -cost
    scores = torch.cat([matrix + 2 * per_letter, torch.full((1, letters), pad)])
    lift = max(0, -int(scores.min()))
    if source == MATRIX or int(scores.max()) + lift > _BYTE:
        source, lift, held = MATRIX, 0, scores.int()
    elif source == PROFILE:
        held = (scores + lift).to(torch.uint8)
    else:
        places = torch.arange(min(letters, 4))
        held = ((scores + lift)[:, :4] << 8 * places).sum(1).int()
    return Scheme(
        source=source,
        scores=held.to(device),
        cost=cost,
        extend=extend,
        per_letter=per_letter,
        lift=lift,
        bias=lift + 4 * (cost + extend) + 1,
        open_left=0 if free.query_begin or free.anywhere else cost,
        open_top=0 if free.target_begin or free.anywhere else cost,
        left_slope=per_letter * free.query_begin,
        top_slope=per_letter * free.target_begin,
        highest=max(0, int(matrix.max())),
    )


class Launch(NamedTuple):
    """Pairs that one launch serves.

    Attributes
    ----------
    pairs : Pairs
        Long queries first.
    order : int64 [n] or None
        Which of all pairs these are; None if all as they are.
    numbers : Scheme
        How they are scored.
    packed : bool
        Whether lanes take two pairs at a time.
    width, lanes, strips : int
        Columns of a lane, lanes of a pair, and strips of the target.
    rows : int
        Letters of the longest query.
    """

    pairs: Pairs
    order: Tensor | None
    numbers: Scheme
    packed: bool
    width: int
    lanes: int
    strips: int
    rows: int

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.pairs.query_start)

    @property
    def columns(self) -> int:
        """Of a lane, rounded up to a power of two."""
        return 1 << (self.width - 1).bit_length()

    @property
    def per_program(self) -> int:
        """Pairs of a program."""
        return LANES // self.lanes * (1 + self.packed)

    @property
    def n_groups(self) -> int:
        """Pairs of a program make a group."""
        return -(-self.n // self.per_program)

    @property
    def most_runs(self) -> int:
        """No alignment has more letters, and so not more runs of operations."""
        return self.rows + self.width * self.lanes * self.strips

    def split(self, size: int) -> Iterator[Launch]:
        """Launches of so many pairs at most."""
        if size >= self.n:
            yield self
            return
        order = self.order
        if order is None:
            order = torch.arange(self.n, device=self.pairs.letters.device)
        parts = (part.split(size) for part in (order, *self.pairs[1:]))
        for some, *places in zip(*parts, strict=True):
            pairs = Pairs(self.pairs.letters, *places)
            yield self._replace(pairs=pairs, order=some, rows=int(pairs.query_length[0]))


def launches(
    pairs: Pairs, matrix: Tensor, gaps: Gaps, free: Free, halves: bool, banded: bool
) -> Iterator[Launch]:
    """Sort pairs by what they need: sources of scores, 16 or 32 bits, columns, rows.

    Parameters
    ----------
    halves : bool
        Whether the GPU calculates with halves of registers.
    banded : bool
        Whether cells are left out, which takes 32 bits.
    """
    for source, places in _sources(pairs, len(matrix)):
        some = pairs if places is None else _chosen(pairs, places)
        if not len(some.query_start):
            continue
        numbers = scheme(matrix, gaps, free, source, pairs.letters.device)
        packs = halves and not banded and numbers.source != MATRIX
        for launch in _of_one_source(some, numbers, packs):
            if places is None:
                yield launch
            else:
                order = places if launch.order is None else places[launch.order]
                yield launch._replace(order=order)


def _chosen(pairs: Pairs, places: Tensor) -> Pairs:
    return Pairs(pairs.letters, *(part[places] for part in pairs[1:]))


def _sources(pairs: Pairs, letters: int) -> Iterator[tuple[int, Tensor | None]]:
    """Where to find scores for which pairs: of nucleotides, rarely there are more than four."""
    if letters > _BASES:
        yield PROFILE, None
    elif letters <= 4 or not (pairs.letters[PAD:-PAD] > 3).any():
        yield TABLE, None
    else:
        others = torch.nn.functional.pad((pairs.letters > 3).cumsum(0, dtype=torch.int32), (1, 0))
        last = pairs.query_start + pairs.query_length
        common = others[last] == others[pairs.query_start]
        yield TABLE, common.nonzero()[:, 0]
        yield PROFILE, (~common).nonzero()[:, 0]


def _of_one_source(pairs: Pairs, numbers: Scheme, halves: bool) -> Iterator[Launch]:
    """Launches for all of these pairs."""
    lengths = torch.stack([*pairs.query_length.aminmax(), *pairs.target_length.aminmax()])
    shortest, rows, narrowest, columns = lengths.tolist()
    if numbers.bias + _highest(numbers, rows, columns) > _WORD:
        raise InputError("scores of sequences this long do not fit in 32 bits: scale them down")
    widest = _widest(len(pairs.query_start), numbers.source)
    if shortest == rows and narrowest == columns:
        packed = halves and _highest(numbers, rows, columns) <= _HALF
        width, lanes, strips = _shape(columns, widest)
        yield Launch(pairs, None, numbers, packed, width, lanes, strips, rows)
        return
    shapes, of_columns = _shapes(1 << columns.bit_length(), widest)
    fits = (_highest(numbers, pairs.query_length, pairs.target_length) <= _HALF) & halves
    kind = of_columns.to(fits.device)[pairs.target_length] * 2 + fits
    order = (kind * (rows + 1) + rows - pairs.query_length).argsort(stable=True)
    kinds, counts = kind[order].unique_consecutive(return_counts=True)
    longest = pairs.query_length[order[counts.cumsum(0) - counts]]
    kinds_of, sizes, most_rows = torch.stack([kinds, counts, longest]).tolist()
    parts = zip(*(part.split(sizes) for part in (order, *_chosen(pairs, order)[1:])), strict=True)
    for (chosen, *places), at, most in zip(parts, kinds_of, most_rows, strict=True):
        width, lanes, strips = shapes[at // 2]
        some = Pairs(pairs.letters, *places)
        yield Launch(some, chosen, numbers, at % 2 == 1, width, lanes, strips, most)


def _highest(numbers: Scheme, rows: Any, columns: Any) -> Any:
    """More than any cell holds; numbers of letters are integers or tensors of them."""
    least = min(rows, columns) if isinstance(rows, int) else torch.minimum(rows, columns)
    return numbers.bias + numbers.highest * least + numbers.per_letter * (rows + columns)


def _widest(n: int, source: int) -> int:
    """Columns of a lane at most: few pairs are spread over more lanes and strips."""
    if n < _MANY:
        return _WIDTHS[0]
    return _WIDEST_PROFILE if source == PROFILE else _WIDTHS[-1]


@lru_cache(maxsize=64)
def _shapes(columns: int, widest: int) -> tuple[list[tuple[int, int, int]], Tensor]:
    """Shapes of fewer columns, and which of them is quickest for each number of columns."""
    quickest = [_shape(c, widest) for c in range(columns)]
    shapes = sorted(set(quickest))
    number = {shape: k for k, shape in enumerate(shapes)}
    return shapes, torch.tensor([number[shape] for shape in quickest])


@cache
def _shape(columns: int, widest: int) -> tuple[int, int, int]:
    """The quickest width, lanes and strips for so many columns."""
    if columns > 32 * widest:
        strips = -(-columns // (32 * widest))
        return -(-columns // (128 * strips)) * 4, 32, strips
    fitting = [
        (width, lanes)
        for width in _WIDTHS
        for lanes in _LANES_OF_PAIR
        if width <= widest and width * lanes >= columns
    ]
    return *min(fitting, key=lambda shape: _time(shape[0], shape[1], columns)), 1


def _time(width: int, lanes: int, rows: int) -> float:
    """Of a pair with so many rows, in lanes times columns."""
    return lanes * (width + _STEP_COST) * (rows + lanes - 1)
