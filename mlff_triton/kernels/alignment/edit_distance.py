"""Edit distance: the fewest insertions, deletions and substitutions that turn a into b.

    D(i, j) = min(D(i - 1, j - 1) + [a_i != b_j], D(i - 1, j) + 1, D(i, j - 1) + 1)

Rows i are symbols (residues or bases) of the shorter sequence. Neighboring cells differ by at most
one, so a column is held in two bits per row: one is set where D rises from the row above, the other
where it falls. Words of 32 rows go from column to column by logic and one addition. The word below
needs only the change of D along a word's last row (G. Myers, https://doi.org/10.1145/316542.316550,
in the form of H. Hyyrö, "A bit-vector algorithm for computing Levenshtein and Damerau edit
distances", Nordic J. Comput. 10, 29, 2003).

The lanes of one warp hold the words of a sequence in registers, several words per lane. A lane is
one column behind the lane above, and receives that lane's changes by a shuffle. Codes of symbols
are stored as bit planes, so that logic finds the rows of a symbol. Sequences with more words than a
warp holds are processed in strips, one after the other, and the changes of D along a strip's last
row go through memory.

Logic instructions are the bottleneck on a GPU. Shifts and additions are therefore written as
products with a factor of two that compilers do not see, because another unit computes those at the
same time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.alignment.lanes import appended
from mlff_triton.kernels.alignment.types import PAD, Pairs
from mlff_triton.kernels.common.checks import check_device, check_shape

_WORD = tl.constexpr(32)
_UNROLL = tl.constexpr(4)  # columns whose codes are loaded while the previous ones are used


class Limits(NamedTuple):
    """Sizes that edit distances may be divided into.

    Attributes
    ----------
    sizes : tuple of int
        Words per pair, ascending. Each size is one launch.
    words, lanes : int
        Largest numbers of words per lane, and of lanes per pair, a power of two up to 32.
    programs : int
        Programs that fill a GPU. Fewer pairs are spread over more lanes.
    edge_bytes : int
        Largest number of bytes for the edges of strips.
    """

    sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    words: int = 8
    lanes: int = 32
    programs: int = 2048
    edge_bytes: int = 2**28


DEFAULT_LIMITS = Limits()


@triton.jit
def _planes(letters_ptr, start, length, W: tl.constexpr, PLANES: tl.constexpr):
    """Load a lane's codes as bit planes: bit r of plane p of word w is bit p of code 32 w + r.

    Less than a word is read past the end of the sequence. Its bits have no meaning.
    """
    planes = ()
    for _ in tl.static_range(W * PLANES):
        planes = appended(planes, tl.zeros_like(length))
    for row in range(0, _WORD, _UNROLL):
        for unrolled in tl.static_range(_UNROLL):
            shifted = ()
            for w in tl.static_range(W):
                word_ptr = letters_ptr + start + tl.minimum(w * _WORD, length)
                letter = tl.load(word_ptr + row + unrolled).to(tl.int32)
                for p in tl.static_range(PLANES):
                    rest = (planes[w * PLANES + p] >> 1) & 0x7FFFFFFF
                    shifted = appended(shifted, rest | ((letter >> p) << 31))
            planes = shifted
    return planes


@triton.jit
def _load_columns(target, step, STEPS: tl.constexpr, INSIDE: tl.constexpr):
    """Load the codes of the next columns, and the changes of D along the row above the lanes."""
    target_ptr, length, edges_ptr, strip, rank = target
    letters = ()
    edges = ()
    for s in tl.static_range(STEPS):
        before_end = step + s - rank < length
        if INSIDE:
            letter = tl.load(target_ptr + step + s)
        else:
            letter = tl.load(target_ptr + step + s, before_end & (step + s >= rank), other=0)
        letters = appended(letters, letter.to(tl.int32))
        edge = tl.full(letter.shape, 1, tl.int32)
        if edges_ptr is not None:
            known = before_end & (rank == 0) & (strip > 0)
            edge = tl.load(edges_ptr + step + s, known, other=1).to(tl.int32)
        edges = appended(edges, edge)
    return letters, edges


@triton.jit
def _top(word, two):
    """Return the highest bit."""
    if two is None:
        bit = (word >> 31) & 1
    else:
        bit = tl.umulhi(word.to(tl.uint32), two.to(tl.uint32)).to(tl.int32)
    return bit


@triton.jit
def _double(word, bit, two):
    """Return the word shifted up by one bit, with a given lowest bit."""
    return (word << 1) | bit if two is None else word * two + bit


@triton.jit
def _sum(a, b, bit, two):
    """Return ``a + b + bit``."""
    return a + b + bit if two is None else a * (two - 1) + (b + bit)


@triton.jit
def _bits(letter, PLANES: tl.constexpr):
    """Return for each plane a word filled with the bit of a code."""
    bits = ()
    for p in tl.static_range(PLANES):
        bits = appended(bits, (letter << (31 - p)) >> 31)
    return bits


@triton.jit
def _advance(rises, falls, planes, letter, up, down, two, W: tl.constexpr, PLANES: tl.constexpr):
    """Compute the next column of a lane's words.

    The highest bits of ``up`` and ``down`` are set where D rises or falls along the row above the
    first word. The returned values refer to the last row.
    """
    bits = _bits(letter, PLANES)
    new_rises = ()
    new_falls = ()
    for w in tl.static_range(W):
        rise = rises[w]
        fall = falls[w]
        equal = ~(planes[w * PLANES] ^ bits[0])
        for p in tl.static_range(1, PLANES):
            equal &= ~(planes[w * PLANES + p] ^ bits[p])
        up_bit = _top(up, two)
        down_bit = _top(down, two)
        kept = (_sum(equal & rise, rise, down_bit, two) ^ rise) | equal
        up = fall | ~(kept | rise)
        down = rise & kept
        up_above = _double(up, up_bit, two)
        equal |= fall
        new_rises = appended(new_rises, _double(down, down_bit, two) | ~(equal | up_above))
        new_falls = appended(new_falls, up_above & equal)
    return new_rises, new_falls, up, down


@triton.jit
def _where(condition, x, y, W: tl.constexpr):
    """Select each word of x where the condition holds, and of y elsewhere."""
    chosen = ()
    for w in tl.static_range(W):
        chosen = appended(chosen, tl.where(condition, x[w], y[w]))
    return chosen


@triton.jit
def _follow(
    state,
    planes,
    target,
    begin,
    end,
    two,
    lanes,
    W: tl.constexpr,
    PLANES: tl.constexpr,
    INSIDE: tl.constexpr,
):
    """Take the steps from begin to end. Unless INSIDE, lanes may be outside their target."""
    steps: tl.constexpr = _UNROLL if INSIDE else 1
    rises, falls, up, down = state
    _, length, edges_ptr, _, rank = target
    above = tl.maximum(tl.arange(0, rank.shape[0]) - 1, 0)
    letters, edges = _load_columns(target, begin, steps, INSIDE)
    for step in range(begin, end, steps):
        next_letters, next_edges = _load_columns(target, step + steps, steps, INSIDE)
        for s in tl.static_range(steps):
            up = tl.where(rank == 0, -edges[s], tl.gather(up, above, 0))
            down = tl.where(rank == 0, edges[s], tl.gather(down, above, 0))
            old_rises = rises
            old_falls = falls
            rises, falls, up, down = _advance(
                rises, falls, planes, letters[s], up, down, two, W, PLANES
            )
            inside = (step + s >= rank) & (step + s - rank < length)
            if not INSIDE:
                rises = _where(inside, rises, old_rises, W)
                falls = _where(inside, falls, old_falls, W)
            if edges_ptr is not None:
                edge = (_top(up, None) - _top(down, None)).to(tl.int8)
                tl.store(edges_ptr + step + s, edge, inside & (rank == lanes - 1))
        letters = next_letters
        edges = next_edges
    return rises, falls, up, down


@triton.jit
def _count_bits(word):
    """Return the number of set bits."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return (word * 0x01010101) >> 24


@triton.jit(
    do_not_specialize=("first", "last", "columns", "two"),
    do_not_specialize_on_alignment=("lanes",),  # only on 1, as one lane needs no shuffles
)
def _edit_distance_fwd_kernel(
    pairs,
    order_ptr,
    edges_ptr,
    distance_ptr,
    first,
    last,
    columns,
    two,
    lanes,
    LANES: tl.constexpr,
    W: tl.constexpr,
    PLANES: tl.constexpr,
):
    """Compute the edit distances of the pairs from `first` to before `last`.

    Parameters
    ----------
    pairs : Pairs
        Sequences.
    order_ptr : int64 [n] or None
        Indices of the pairs in the order of the launch; None if they are in order.
    edges_ptr : int8 [last - first, columns] or None
        Scratch memory for the changes of D along the last row of a strip; None for one strip.
    distance_ptr : int32 [n]
        Written: the edit distance of each pair.
    first, last : int
        Positions of the pairs in the order of the launch.
    columns : int
        Length of the longest sequence.
    two : int or None
        The number two, if products are to replace shifts.
    lanes : int
        Lanes per pair.
    LANES, W, PLANES : int
        Lanes per program, words per lane, and bits per code.

    Notes
    -----
    The grid is ``[ceil((last - first) * lanes / LANES)]``, programs of one warp.
    """
    lane = tl.arange(0, LANES)
    rank = lane % lanes
    position = first + tl.program_id(0) * (LANES // lanes) + lane // lanes
    chosen = position < last
    position = tl.minimum(position, last - 1)
    pair = position if order_ptr is None else tl.load(order_ptr + position)
    query_start = tl.load(pairs.query_start + pair)
    query_length = tl.load(pairs.query_length + pair).to(tl.int32)
    target_start = tl.load(pairs.target_start + pair)
    target_length = tl.load(pairs.target_length + pair).to(tl.int32)
    swapped = query_length > target_length
    start = tl.where(swapped, target_start, query_start)
    target_ptr = pairs.letters + tl.where(swapped, query_start, target_start) - rank
    shorter = tl.minimum(query_length, target_length)
    longer = tl.maximum(query_length, target_length)
    n_strips = 1
    if edges_ptr is not None:
        edges_ptr += (position - first).to(tl.int64) * columns - rank
        n_strips = tl.cdiv(tl.max(shorter, 0), _WORD * W * lanes)

    begin = lanes - 1  # first step in which all lanes have a column
    end = begin + tl.maximum(tl.min(longer, 0) - begin, 0) // _UNROLL * _UNROLL
    last_step = begin + tl.max(longer, 0)
    distance = tl.where(rank == 0, longer, 0)
    for strip in range(n_strips):
        row = (strip * lanes + rank) * W * _WORD
        planes = _planes(pairs.letters, start + row, shorter - row, W, PLANES)
        target = target_ptr, longer, edges_ptr, strip, rank
        nothing = tl.zeros((LANES,), tl.int32)
        rises = ()
        falls = ()
        for _ in tl.static_range(W):
            rises = appended(rises, ~nothing)
            falls = appended(falls, nothing)
        state = rises, falls, nothing, nothing
        state = _follow(state, planes, target, 0, begin, two, lanes, W, PLANES, False)
        state = _follow(state, planes, target, begin, end, two, lanes, W, PLANES, True)
        state = _follow(state, planes, target, end, last_step, two, lanes, W, PLANES, False)
        for w in tl.static_range(W):
            n_rows = tl.minimum(tl.maximum(shorter - row - w * _WORD, 0), _WORD)
            rows = tl.where(n_rows == _WORD, 0, 1 << n_rows) - 1
            distance += _count_bits(state[0][w] & rows) - _count_bits(state[1][w] & rows)
        if edges_ptr is not None:
            tl.debug_barrier()
    sums = tl.cumsum(distance, 0)
    before = tl.where(lane < lanes, 0, tl.gather(sums, tl.maximum(lane - lanes, 0), 0))
    tl.store(distance_ptr + pair, sums - before, chosen & (rank == lanes - 1))


def _two() -> int | None:
    """Return the factor for products, or None where they do not run on another unit than logic."""
    return 2 if torch.version.hip is None else None


class _Group(NamedTuple):
    """Pairs of one launch, from position `first` to before `last`, with up to `words` words."""

    words: int
    first: int
    last: int


def _split(group: _Group, limits: Limits) -> tuple[int, int, bool]:
    """Return lanes per pair, words per lane, and True if there are several strips."""
    lanes, words = 1, group.words
    strips = triton.cdiv(words, limits.lanes * limits.words)
    if strips > 1:
        return limits.lanes, triton.cdiv(words, strips * limits.lanes), True
    enough = 32 * limits.programs
    while words > limits.words or (
        words % 2 == 0 and lanes < limits.lanes and lanes * (group.last - group.first) < enough
    ):
        lanes, words = 2 * lanes, triton.cdiv(words, 2)
    return lanes, words, False


def _grouped(
    shorter: Tensor, longer: Tensor, most_words: int, limits: Limits
) -> tuple[Tensor, list[_Group]]:
    """Sort pairs by size, then by the length of the longer sequence. Return order and groups."""
    sizes = torch.tensor(limits.sizes, device=shorter.device)
    size = torch.bucketize((shorter + (_WORD.value - 1)) // _WORD.value, sizes)
    keys, order = torch.sort(size << 32 | longer)
    bounds = torch.arange(len(limits.sizes) + 2, device=keys.device) << 32
    starts = torch.searchsorted(keys, bounds).tolist()
    words = (*limits.sizes, most_words)
    groups = [_Group(*group) for group in zip(words, starts[:-1], starts[1:], strict=True)]
    return order, [group for group in groups if group.last > group.first]


def _launch(
    pairs: Pairs,
    order: Tensor | None,
    group: _Group,
    longest: int,
    planes: int,
    limits: Limits,
    out: Tensor,
) -> None:
    """Launch the kernel for a group, in parts if the edges of strips need too much memory."""
    lanes, words, strips = _split(group, limits)
    warp = 32 if torch.version.hip is None else 64
    stop, edges, at_once = group.last, None, group.last - group.first
    if strips:
        at_once = max(1, min(at_once, limits.edge_bytes // longest))
        edges = pairs.letters.new_empty(at_once * longest, dtype=torch.int8)
    for first in range(group.first, stop, at_once):
        last = min(first + at_once, stop)
        grid = (triton.cdiv((last - first) * lanes, warp),)
        with torch.cuda.device_of(out):
            _edit_distance_fwd_kernel[grid](
                pairs,
                order,
                edges,
                out,
                first,
                last,
                longest,
                _two(),
                lanes,
                LANES=warp,
                W=words,
                PLANES=planes,
                num_warps=1,
            )


def _check(pairs: Pairs) -> None:
    """Check that dtypes, shapes and devices agree."""
    check_device(*pairs)
    if pairs.letters.dtype != torch.uint8:
        raise InputError(f"letters have dtype {pairs.letters.dtype}: use uint8 codes")
    for name, index in list(pairs._asdict().items())[1:]:
        check_shape(name, index, (len(pairs.query_start),))
        if index.dtype != torch.int64:
            raise InputError(f"{name} has dtype {index.dtype}: use int64")


def edit_distance(
    pairs: Pairs, n_letters: int | None = None, *, limits: Limits = DEFAULT_LIMITS
) -> Tensor:
    """Count the fewest insertions, deletions and substitutions that turn query into target.

    Parameters
    ----------
    pairs : Pairs
        Sequences on a GPU. Some may be empty. Starts and lengths are not checked.
    n_letters : int, optional
        Upper bound on all codes, exclusive. A smaller alphabet is faster. By default, the bound is
        read from the sequences.
    limits : Limits
        Sizes to divide the work into. They do not change the results.

    Returns
    -------
    int32 [n]
        Edit distance of each pair.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not agree.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> letters = torch.zeros(PAD + 7 + PAD, dtype=torch.uint8, device="cuda")
    >>> letters[PAD : PAD + 7] = torch.tensor([2, 0, 3, 0, 2, 3, 0])  # GATA and GTA
    >>> index = [torch.tensor([k], device="cuda") for k in (PAD, 4, PAD + 4, 3)]
    >>> edit_distance(Pairs(letters, *index)).tolist()
    [1]
    """
    _check(pairs)
    out = pairs.query_start.new_empty(len(pairs.query_start), dtype=torch.int32)
    if not len(out):
        return out
    shorter = torch.minimum(pairs.query_length, pairs.target_length)
    longer = torch.maximum(pairs.query_length, pairs.target_length)
    extremes = [*shorter.aminmax(), *longer.aminmax()]
    if n_letters is None:
        extremes.append(pairs.letters[PAD:].max().long())
    shortest, most, least, longest, *largest = torch.stack(extremes).tolist()
    planes = max((largest[0] if n_letters is None else n_letters - 1).bit_length(), 1)
    words = max(triton.cdiv(most, _WORD.value), 1)
    contiguous = Pairs(*(tensor.contiguous() for tensor in pairs))
    if shortest == most and least == longest:
        order, groups = None, [_Group(words, 0, len(out))]
    else:
        order, groups = _grouped(shorter, longer, words, limits)
    for group in groups:
        _launch(contiguous, order, group, longest, planes, limits, out)
    return out
