"""Layout of sequence pairs over lanes and launches, and the integers that score them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.alignment.arguments import Constants
from mlff_triton.kernels.alignment.types import PAD, Free, Gaps, Pairs

# Sources of substitution scores.
TABLE = 0  # registers: per column, one byte for each of the four bases
PROFILE = 1  # memory: per residue or base, one byte for each column of a lane
MATRIX = 2  # the substitution matrix itself, with scores of any size

_BYTE, _HALF, _WORD = 127, 2**15 - 1, 2**29
LANES = 32  # per program

_WIDEST_PROFILE = 16  # columns per lane that can be read at once
_STEP_COST = 5  # passing a row to the next lane takes as long as this many columns
_BASES = 16  # largest alphabet of nucleotides; its first four symbols are the common ones
_MANY = 2048  # pairs that fill a GPU without strips


class Tiling(NamedTuple):
    """Sizes that an alignment may be divided into.

    Attributes
    ----------
    widths : tuple of int
        Columns per lane, ascending, multiples of four up to 32.
    lanes : tuple of int
        Lanes per pair, ascending, powers of two up to `LANES`.
    chunk : int
        Steps per tile of the traceback, at most the largest number of lanes.
    """

    widths: tuple[int, ...] = (8, 12, 16, 20, 24, 28, 32)
    lanes: tuple[int, ...] = (4, 8, 16, 32)
    chunk: int = 32


DEFAULT_TILING = Tiling()


class Scheme(NamedTuple):
    """Scores of an alignment in the form that kernels use.

    Attributes
    ----------
    source : int
        `TABLE`, `PROFILE` or `MATRIX`.
    scores : Tensor
        Substitution scores, one row for each residue or base of the target and one for padding:
        int32 [A + 1] with one byte for each base, uint8 [A + 1, A] or int32 [A + 1, A].
    constants : Constants
        Gap penalties and offsets.
    highest : int
        Largest substitution score, or zero if all are negative.
    """

    source: int
    scores: Tensor
    constants: Constants
    highest: int

    @property
    def letters(self) -> int:
        """Size of the alphabet."""
        return len(self.scores) - 1


def scheme(matrix: Tensor, gaps: Gaps, free: Free, source: int, device: torch.device) -> Scheme:
    """Return the scheme for a source, or for `MATRIX` if the scores do not fit in bytes."""
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
        shift = 8 * torch.arange(min(letters, 4))
        held = ((scores + lift)[:, :4] << shift).sum(1).int()
    constants = Constants(
        cost=cost,
        extend=extend,
        per_letter=per_letter,
        lift=lift,
        bias=lift + 4 * (cost + extend) + 1,
        open_left=0 if free.query_begin or free.anywhere else cost,
        open_top=0 if free.target_begin or free.anywhere else cost,
        left_slope=per_letter * free.query_begin,
        top_slope=per_letter * free.target_begin,
    )
    return Scheme(source, held.to(device), constants, max(0, int(matrix.max())))


class Bucket(NamedTuple):
    """Pairs of similar size, aligned by one launch.

    Attributes
    ----------
    pairs : Pairs
        Sequences, longest query first.
    order : int64 [n] or None
        Index of each pair among all pairs; None if the bucket holds all pairs in their order.
    scheme : Scheme
        Scores.
    packed : bool
        If True, each lane processes two pairs at a time.
    width, lanes, strips : int
        Columns per lane, lanes per pair, and strips that a target is split into.
    rows : int
        Length of the longest query.
    """

    pairs: Pairs
    order: Tensor | None
    scheme: Scheme
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
        """Columns per lane, rounded up to a power of two."""
        return 1 << (self.width - 1).bit_length()

    @property
    def per_program(self) -> int:
        """Pairs per program."""
        return LANES // self.lanes * (1 + self.packed)

    @property
    def n_groups(self) -> int:
        """Number of groups, each holding the pairs of one program."""
        return -(-self.n // self.per_program)

    @property
    def max_runs(self) -> int:
        """Upper bound on the runs of operations in an alignment: its largest length."""
        return self.rows + self.width * self.lanes * self.strips

    def split(self, size: int) -> Iterator[Bucket]:
        """Yield buckets of at most `size` pairs."""
        if size >= self.n:
            yield self
            return
        order = self.order
        if order is None:
            order = torch.arange(self.n, device=self.pairs.letters.device)
        parts = (part.split(size) for part in (order, *self.pairs[1:]))
        for chosen, *indices in zip(*parts, strict=True):
            pairs = Pairs(self.pairs.letters, *indices)
            yield self._replace(pairs=pairs, order=chosen, rows=int(pairs.query_length[0]))


def buckets(
    pairs: Pairs,
    matrix: Tensor,
    gaps: Gaps,
    free: Free,
    *,
    packs: bool,
    tiling: Tiling = DEFAULT_TILING,
) -> Iterator[Bucket]:
    """Sort pairs by the source of their scores, by 16 or 32 bits, by columns and by rows.

    Parameters
    ----------
    pairs, matrix, gaps, free
        As for `mlff_triton.kernels.alignment.alignment.alignment`.
    packs : bool
        If True, pairs with scores of at most 16 bits share lanes.
    tiling : Tiling
        Sizes to choose from.

    Raises
    ------
    InputError
        If scores may not fit in 32 bits.
    """
    for source, indices in _sources(pairs, len(matrix)):
        chosen = pairs if indices is None else _chosen(pairs, indices)
        if not len(chosen.query_start):
            continue
        scores = scheme(matrix, gaps, free, source, pairs.letters.device)
        packed = packs and scores.source != MATRIX
        for bucket in _buckets_of_one_source(chosen, scores, packed, tiling):
            if indices is None:
                yield bucket
            else:
                order = indices if bucket.order is None else indices[bucket.order]
                yield bucket._replace(order=order)


def _chosen(pairs: Pairs, indices: Tensor) -> Pairs:
    return Pairs(pairs.letters, *(part[indices] for part in pairs[1:]))


def _sources(pairs: Pairs, letters: int) -> Iterator[tuple[int, Tensor | None]]:
    """Yield sources of scores with the indices of their pairs, or with None for all pairs.

    Alphabets of nucleotides have four common bases, whose scores fit in registers. Pairs with any
    other base need a profile.
    """
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


def _buckets_of_one_source(
    pairs: Pairs, scores: Scheme, packs: bool, tiling: Tiling
) -> Iterator[Bucket]:
    """Yield buckets that together hold all of these pairs."""
    lengths = torch.stack([*pairs.query_length.aminmax(), *pairs.target_length.aminmax()])
    shortest, rows, narrowest, columns = lengths.tolist()
    if scores.constants.bias + _highest(scores, rows, columns) > _WORD:
        raise InputError(
            "scores of sequences this long do not fit in 32 bits: use smaller scores and gap "
            "penalties"
        )
    widest = _widest(len(pairs.query_start), scores.source, tiling)
    if shortest == rows and narrowest == columns:
        packed = packs and _highest(scores, rows, columns) <= _HALF
        width, lanes, strips = _shape(columns, widest, tiling)
        yield Bucket(pairs, None, scores, packed, width, lanes, strips, rows)
        return
    shapes, shape_of_columns = _shapes(1 << columns.bit_length(), widest, tiling)
    fits = (_highest(scores, pairs.query_length, pairs.target_length) <= _HALF) & packs
    kind = shape_of_columns.to(fits.device)[pairs.target_length] * 2 + fits
    order = (kind * (rows + 1) + rows - pairs.query_length).argsort(stable=True)
    kinds, counts = kind[order].unique_consecutive(return_counts=True)
    longest = pairs.query_length[order[counts.cumsum(0) - counts]]
    kind_of_bucket, sizes, rows_of_bucket = torch.stack([kinds, counts, longest]).tolist()
    parts = zip(*(part.split(sizes) for part in (order, *_chosen(pairs, order)[1:])), strict=True)
    for (chosen, *indices), one_kind, most in zip(
        parts, kind_of_bucket, rows_of_bucket, strict=True
    ):
        width, lanes, strips = shapes[one_kind // 2]
        some = Pairs(pairs.letters, *indices)
        yield Bucket(some, chosen, scores, one_kind % 2 == 1, width, lanes, strips, most)


def _highest(scores: Scheme, rows: Any, columns: Any) -> Any:
    """Return a bound above any cell, for integers or for tensors of rows and columns."""
    least = min(rows, columns) if isinstance(rows, int) else torch.minimum(rows, columns)
    constants = scores.constants
    return constants.bias + scores.highest * least + constants.per_letter * (rows + columns)


def _widest(n: int, source: int, tiling: Tiling) -> int:
    """Return the largest number of columns per lane. Few pairs take more lanes and strips."""
    if n < _MANY:
        return tiling.widths[0]
    return min(_WIDEST_PROFILE, tiling.widths[-1]) if source == PROFILE else tiling.widths[-1]


@lru_cache(maxsize=64)
def _shapes(columns: int, widest: int, tiling: Tiling) -> tuple[list[tuple[int, int, int]], Tensor]:
    """Return the shapes used below a number of columns, and for each number the shape's index."""
    quickest = [_shape(c, widest, tiling) for c in range(columns)]
    shapes = sorted(set(quickest))
    index = {shape: k for k, shape in enumerate(shapes)}
    return shapes, torch.tensor([index[shape] for shape in quickest])


@cache
def _shape(columns: int, widest: int, tiling: Tiling) -> tuple[int, int, int]:
    """Return the fastest width, lanes and strips for a number of columns."""
    lanes = tiling.lanes[-1]
    if columns > lanes * widest:
        strips = -(-columns // (lanes * widest))
        return -(-columns // (4 * lanes * strips)) * 4, lanes, strips
    fitting = [
        (width, lanes)
        for width in tiling.widths
        for lanes in tiling.lanes
        if width <= widest and width * lanes >= columns
    ]
    return *min(fitting, key=lambda shape: _time(shape[0], shape[1], columns)), 1


def _time(width: int, lanes: int, rows: int) -> float:
    """Estimate the time of a pair with this many rows, in lanes times columns."""
    return lanes * (width + _STEP_COST) * (rows + lanes - 1)
