"""Attention of rows of tokens that share the bias of every pair of tokens.

    s_rij = scale q_ri . k_rj + bias_ij      out_ri = sum_j softmax_j(s_rij) v_rj

Rows r are the rows or columns of a pair representation in triangle attention, and samples in the
attention of tokens with pair bias. The sum is over the kept keys of a row.

Each program owns a block of queries of one row and head, and loops over the keys once (T. Dao et
al., "FlashAttention", https://arxiv.org/abs/2205.14135). The biases of a block of scores are the
initial value of the product of queries and keys, unless the product is to be exact. Blocks whose
keys are all kept need no mask: a first kernel finds the first masked key and the last kept key of
each row, so padding at the end costs nothing.

Softmax does not change if a number is subtracted from all scores. Usually, this is the largest
score so far, but then all weights wait for it, and each block scales the output anew. Weights in
bfloat16 have the exponents of float32, so nothing is subtracted, and the largest scores may be from
-69 to 69. Programs that find scores outside of this range begin again, with the largest score. On
data-center Blackwell the largest score is always subtracted.

In float32, queries, keys, weights and values are multiplied as halves in float16: see
`mlff_triton.kernels.numerics.split`. Queries of a block share a unit; keys and values have their
own. The unit of a value is a factor of its weight in the product, relative to the largest one of
the block.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 14, 15 and 24 of the
supplement.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.attention import mean_of_values, weigh
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.common.descriptors import aligned, describe, given, has_descriptors
from mlff_triton.kernels.common.hardware import (
    has_large_memory,
    multiprocessors,
    register_limit,
)
from mlff_triton.kernels.numerics.product import inverse, product, split, split_below, untruncated
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.pairs.arguments import FLOATS
from mlff_triton.kernels.pairs.attention_vectors import Vectors, operands

_KEYS = 1024  # per step of a program that searches a mask
_LARGEST_DIM = 128
_MANY = 8  # programs per multiprocessor, which may own twice as many queries
_FEW_ROWS = 16  # that read the same biases at the same time
_UNIT = tl.constexpr(2.0**13)  # of weights that are split
_1_UNIT = tl.constexpr(2.0**-13)
_LEAST = tl.constexpr(2.0**-100)  # unit of values, whose inverse is far from overflow
_LOWEST = tl.constexpr(2.0**-100)  # sum of weights, to which those that underflow add nothing
_HIGHEST = tl.constexpr(2.0**100)
_GROUP = tl.constexpr(8)  # keys whose weights lie in different threads


@triton.jit
def _key_range_kernel(mask_ptr, range_ptr, length, N: tl.constexpr):
    """Write the first masked key and the end of the kept keys, range [rows, 2].

    Reads mask [rows, length]. Grid: (rows,).
    """
    row = tl.program_id(0).to(tl.int64)
    first, end = length, 0
    for start in range(0, length, N):
        key = start + tl.arange(0, N)
        kept = tl.load(mask_ptr + row * length + key, key < length, other=0) != 0
        masked = (kept == 0) & (key < length)
        first = tl.minimum(first, tl.min(tl.where(masked, key, length)))
        end = tl.maximum(end, tl.max(tl.where(kept, key + 1, 0)))
    tl.store(range_ptr + 2 * row, first)
    tl.store(range_ptr + 2 * row + 1, end)


@triton.jit
def _kept_keys(mask_ptr, start, length, N: tl.constexpr):
    """Return a mask of those of N keys from ``start`` on that exist and are kept."""
    key = start + tl.arange(0, N)
    kept = key < length
    if mask_ptr is not None:
        kept = tl.load(mask_ptr + key, kept, other=0) != 0
    return kept


@triton.jit
def _weigh_freely(scores):
    """Return weights [M, N], powers of two, and their sums over groups of keys, [M, _GROUP]."""
    weights = tl.exp2(scores)
    groups = tl.reshape(weights, (scores.shape[0], scores.shape[1] // _GROUP, _GROUP))
    return weights, tl.sum(tl.permute(groups, (0, 2, 1)), 2)  # else, Triton 3.6 fails on Blackwell


@triton.jit
def _begin_again(end, total, acc):
    """Return the end, sum of weights [M] and output [M, D] of another loop over keys.

    If any weights were too small or too large, the loop begins with zeros. Otherwise, it has no
    keys, and the sum and output do not change.
    """
    fits = (total > _LOWEST) & (total < _HIGHEST)
    finite = tl.min((tl.abs(acc) < float("inf")).to(tl.int32), 1)
    again = tl.min(tl.where(fits, finite, 0), 0) == 0
    return tl.where(again, end, 0), tl.where(again, 0.0, total), tl.where(again, 0.0, acc)


@triton.jit
def _load_parts(x, place, batches, PARTS: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """Load all parts of vectors [PARTS B, R, H, T, D] as a tuple of [N, D], from ``place`` on."""
    batch, row, head, start = place
    parts = ()
    for part in tl.static_range(PARTS):
        block = x.load([batch + part * batches, row, head, start, 0])
        parts = parts + (tl.reshape(block, (N, D)),)  # type: ignore[assignment] # noqa: RUF005
    return parts


@triton.jit
def _load_units(unit_ptr, start, kept, N: tl.constexpr):
    """Load the units of N vectors from ``start`` on; zero for keys that are not kept."""
    place = start + tl.arange(0, N)
    if kept is None:
        units = tl.load(unit_ptr + place)
    else:
        units = tl.load(unit_ptr + place, kept, other=0.0)
    return units


@triton.jit
def _load_queries(q, place, SCALE: tl.constexpr, HALVES: tl.constexpr, M: tl.constexpr):
    """Load scaled queries [M, D]; if HALVES, as the high and the low halves and their unit."""
    D: tl.constexpr = q.block_shape[4]
    queries = tl.reshape(q.load(place), (M, D)).to(tl.float32) * SCALE
    if HALVES:
        sizes = tl.abs(queries)
        sizes = tl.where(sizes < float("inf"), sizes, 0.0)  # infinite ones concern their row alone
        found = split_below(queries, tl.max(tl.max(sizes, 1), 0))
    else:
        found = (queries.to(q.dtype),)
    return found


@triton.jit
def _score(queries, keys, biases, units, kept, LOSS: tl.constexpr):
    """Return scores [M, N] of queries from `_load_queries`, -infinity for keys that are not kept.

    ``units`` are () or those of halves, and ``kept`` is None if all keys are.
    """
    if len(units) > 0:
        unit = (queries[2] * units[0])[None, :]
        products = product((queries[0], queries[1]), (keys[0].T, keys[1].T), "halves")
        scores = tl.fma(untruncated(products, keys[0].shape[1], LOSS), unit, biases)
    else:
        scores = tl.dot(queries[0], keys[0].T, biases)
    if kept is not None:
        scores = tl.where(kept[None, :], scores, float("-inf"))
    return scores


@triton.jit
def _add_values(acc, weights, values, units):
    """Add weighted values to an output [M, D]; ``units`` are () or those of halves."""
    if len(units) > 0:
        largest = tl.maximum(tl.max(units[1], 0), _LEAST)
        weights *= (units[1] * (inverse(largest) * _UNIT))[None, :]
        acc += product(split(weights, "halves"), values, "halves") * (largest * _1_UNIT)
    else:
        acc = tl.dot(weights.to(values[0].dtype), values[0], acc)
    return acc


@triton.jit
def _locate(shape, ROWS_FIRST: tl.constexpr, M: tl.constexpr):
    """Return the batch, row, head and first query of a program."""
    _, rows, heads, tokens, _ = shape
    blocks, program = tl.cdiv(tokens, M), tl.program_id(0)
    if ROWS_FIRST:
        row, program = program % rows, program // rows
        batch = program // (blocks * heads)
    else:
        row = program // (blocks * heads) % rows
        batch = program // (blocks * heads * rows)
    return batch, row, program // blocks % heads, program % blocks * M


@triton.jit
def _pair_attention_fwd_kernel(
    q,
    k,
    v,
    k_unit_ptr,
    v_unit_ptr,
    bias,
    mask_ptr,
    range_ptr,
    out_ptr,
    shape,
    q_strides,
    k_strides,
    v_strides,
    bias_strides,
    out_strides,
    SCALE: tl.constexpr,
    BIAS_SCALE: tl.constexpr,
    ROWS_FIRST: tl.constexpr,
    DESCRIBED: tl.constexpr,
    FREE: tl.constexpr,
    DIM: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    STAGES: tl.constexpr,
    LOSS: tl.constexpr,
):
    """Write out [B, R, H, S, DIM].

    Reads q of this shape, k and v [B, R, H, T, DIM] and bias [B H, S, T], for which see `describe`;
    mask [B, R, T] and the range of keys [B, R, 2] of `_key_range_kernel`, or None. If their units
    [B, R, H, T] are not None, k and v are halves [2 B, R, H, T, DIM], the low ones last. Grid:
    blocks of M queries, H, R and B, the innermost first; if ROWS_FIRST, R is the innermost. If
    FREE, which weights in bfloat16 may be, nothing is subtracted from scores at first.
    """
    batches, rows, heads, tokens, length = shape
    HALVES: tl.constexpr = k_unit_ptr is not None
    PARTS: tl.constexpr = 2 if HALVES else 1
    batch, row, head, first = _locate(shape, ROWS_FIRST, M)
    vectors = (PARTS * batches, rows, heads, length, DIM)
    q = describe(q, (batches, rows, heads, tokens, DIM), q_strides, (1, 1, 1, M, D), DESCRIBED)
    k = describe(k, vectors, k_strides, (1, 1, 1, N, D), DESCRIBED)
    v = describe(v, vectors, v_strides, (1, 1, 1, N, D), DESCRIBED)
    bias = describe(bias, (batches * heads, tokens, length), bias_strides, (1, M, N), DESCRIBED)

    queries = _load_queries(q, [batch, row, head, first, 0], SCALE, HALVES, M)
    if HALVES:
        index = ((batch.to(tl.int64) * rows + row) * heads + head) * length
        k_unit_ptr += index
        v_unit_ptr += index
    unmasked, end = length, length
    if mask_ptr is not None:
        index = batch.to(tl.int64) * rows + row
        unmasked, end = tl.load(range_ptr + 2 * index), tl.load(range_ptr + 2 * index + 1)
        mask_ptr += index * length
    peak = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, _GROUP], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    whole = unmasked // N * N
    # Blocks of kept keys, then the others, and all of them again if weights were out of range.
    for LOOP in tl.static_range(3 if FREE else 2):
        begin, stop = (whole, end) if LOOP == 1 else (0, whole)
        if LOOP == 2:
            stop, total, acc = _begin_again(end, tl.sum(sums, 1), acc)
        if begin < stop:  # a loop without iterations prepares its pipeline, too
            for start in tl.range(begin, stop, N, num_stages=STAGES):
                # Loads that follow each other are waited for together.
                biases = tl.reshape(bias.load([batch * heads + head, first, start]), (M, N))
                place = batch, row, head, start
                keys = _load_parts(k, place, batches, PARTS, N, D)
                values = _load_parts(v, place, batches, PARTS, N, D)
                kept = _kept_keys(mask_ptr, start, length, N) if LOOP else None
                units = ()
                if HALVES:
                    k_unit = _load_units(k_unit_ptr, start, kept, N)
                    units = k_unit, _load_units(v_unit_ptr, start, kept, N)  # type: ignore[assignment]
                biases = biases.to(tl.float32) * BIAS_SCALE
                scores = _score(queries, keys, biases, units, kept, LOSS)
                if FREE and LOOP < 2:
                    weights, added = _weigh_freely(scores)
                    sums += added
                else:
                    weights, rescale, peak = weigh(
                        scores, peak, MAY_BE_MASKED=kept is not None, EXACT=HALVES
                    )
                    total = total * rescale + tl.sum(weights, 1)
                    acc *= rescale[:, None]
                acc = _add_values(acc, weights, values, units)
    if HALVES and length >= N:  # sums of few products lose less
        acc = untruncated(acc, N, LOSS)
    token, dim = first + tl.arange(0, M), tl.arange(0, D)
    acc = mean_of_values(acc, total, HALVES)
    out_ptr += batch.to(tl.int64) * out_strides[0] + row.to(tl.int64) * out_strides[1]
    out_ptr += head * out_strides[2]
    pointers = out_ptr + token.to(tl.int64)[:, None] * out_strides[3] + dim[None, :]
    inside = (token < tokens)[:, None] & (dim < DIM)[None, :]
    tl.store(pointers, acc.to(out_ptr.dtype.element_ty), inside)


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    @classmethod
    def of(cls, block: int, q: Tensor) -> Tile:
        """Return block sizes for a block of channels and queries [B, R, S, H, D]."""
        large, half = has_large_memory(q), q.element_size() == 2
        if not large:
            return cls(64, 64 if half else 32, 4, 2 if block <= 32 else 1)
        batches, rows, queries, heads, _ = q.shape
        blocks, processors = triton.cdiv(queries, 64), multiprocessors(q.device)
        programs = blocks * heads * rows * batches
        if block <= 32 and programs > _MANY * processors and blocks % 2 == 0:
            return cls(128, 64, 4, 3, 168) if half else cls(128, 64, 4, 2)
        if half:
            return cls(64, 64, 4, 3, 96 if block <= 32 else None)
        if block <= 64 and programs <= processors:
            return cls(64, 64, 4, 3)
        return cls(64, 64, 4, 2, 168) if block <= 32 else cls(64, 32, 4, 3)


def pair_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute attention of rows that share biases, without gradients.

    In bfloat16, queries whose largest score is outside of -69 to 69 take twice as long, and so do
    those next to them.

    Parameters
    ----------
    q : [B, R, S, H, D]
        Queries of R rows of S tokens; float16, bfloat16 or float32. D is at most 128. Parts of one
        product, transposed axes and overlapping windows need no copy, if the vectors of a head are
        contiguous and aligned to 16 bytes. In float32, queries lose bits if those of adjacent
        tokens are 1e5 times as long.
    k, v : [B, R, T, H, D]
        Keys and values of T tokens.
    bias : [B, H, S, T]
        Biases of queries and keys, finite, of a floating dtype.
    mask : [B, R, T], optional
        Nonzero for keys to keep; all by default. A row without kept keys gives zeros. Values of
        masked keys must be finite.
    scale : float, optional
        Factor of the queries; 1 / sqrt(D) by default.

    Returns
    -------
    [B, R, S, H, D]
        Attention outputs, of the dtype of ``q``, with the axes in the same order in memory.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> q, k, v = torch.randn(3, 1, 5, 7, 4, 24, device="cuda").bfloat16()  # 5 samples
    >>> pair_attention(q, k, v, torch.randn(1, 4, 7, 7, device="cuda").bfloat16()).shape
    torch.Size([1, 5, 7, 4, 24])
    """
    check_same(FLOATS, {"q": q, "k": k, "v": v})
    _check(q, k, v, bias, mask)
    unit = score_unit(q.dtype)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return _attend(q, *operands(k, v), bias, mask, scale * unit, unit)


def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    *,
    ending: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Compute attention of pairs along rows (starting node) or columns, without gradients.

        starting   out_ij = sum_k softmax_k(scale q_ij . k_ik + bias_jk) v_ik
        ending     out_ij = sum_k softmax_k(scale q_ij . k_kj + bias_ik) v_kj

    Parameters
    ----------
    q, k, v : [B, N, N, H, D]
        Queries, keys and values of pairs, as for `pair_attention`.
    bias : [B, H, N, N]
        Biases of query and key. At the ending node, AlphaFold 3 and most of its reimplementations
        take them from the pair of key and query: pass these transposed.
    mask : [B, N, N], optional
        Nonzero for pairs that are kept as keys; all by default. Queries without any give zeros.
    ending : bool
        Attend along columns. The tensors are not copied.
    scale : float, optional
        Factor of the queries; 1 / sqrt(D) by default.

    Returns
    -------
    [B, N, N, H, D]
        Attention outputs, of the dtype of ``q``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> q, k, v = torch.randn(3, 1, 7, 7, 4, 32, device="cuda").bfloat16()
    >>> bias = torch.randn(1, 4, 7, 7, device="cuda").bfloat16()
    >>> triangle_attention(q, k, v, bias, ending=True).shape
    torch.Size([1, 7, 7, 4, 32])
    """
    if not ending:
        return pair_attention(q, k, v, bias, mask, scale)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = None if mask is None else mask.transpose(1, 2)
    return pair_attention(q, k, v, bias, mask, scale).transpose(1, 2)


def score_unit(dtype: torch.dtype) -> float:
    """Return the factor of scores in kernels, for queries of a dtype.

    Scores are exponents of two, except in float32, where the rounding of that conversion would
    show.
    """
    return 1.0 if dtype == torch.float32 else math.log2(math.e)


def attention_of_operands(
    q: Tensor,
    k: Vectors,
    v: Vectors,
    bias: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    bias_scale: float,
) -> Tensor:
    """Compute `pair_attention` with keys and values from `empty_operands`.

    Scores are the scaled products of queries and keys and the scaled biases, in the unit that
    `score_unit` returns.
    """
    _check(q, k.parts[0], v.parts[0], bias, mask)
    return _attend(q, k, v, bias, mask, scale, bias_scale)


def _attend(
    q: Tensor,
    keys: Vectors,
    values: Vectors,
    bias: Tensor,
    mask: Tensor | None,
    scale: float,
    bias_scale: float,
) -> Tensor:
    """Return the attention of queries [B, R, S, H, D] to keys and values."""
    found = torch.empty_like(q) if q.stride(-1) == 1 else q.new_empty(q.shape)
    if not found.numel():
        return found
    batches, rows, queries, heads, dim = q.shape
    block, length = block_side(dim), keys.parts.shape[3]
    tile = Tile.of(block, q)
    q, bias = aligned(q.transpose(2, 3)), aligned(bias.flatten(0, 1))
    k, v = (aligned(x.parts.transpose(3, 4).flatten(0, 1)) for x in (keys, values))
    out = found.transpose(2, 3)
    described = has_descriptors(q)
    mask = None if mask is None else mask.contiguous()
    programs = triton.cdiv(queries, tile.queries) * heads * rows * batches
    with torch.cuda.device_of(q):
        _pair_attention_fwd_kernel[(programs,)](
            given(q, (1, 1, 1, tile.queries, block), described),
            given(k, (1, 1, 1, tile.keys, block), described),
            given(v, (1, 1, 1, tile.keys, block), described),
            keys.unit,
            values.unit,
            given(bias, (1, tile.queries, tile.keys), described),
            mask,
            None if mask is None else _key_ranges(mask),
            out,
            (batches, rows, heads, queries, length),
            q.stride()[:-1],
            k.stride()[:-1],
            v.stride()[:-1],
            bias.stride()[:-1],
            out.stride()[:-1],
            SCALE=scale,
            BIAS_SCALE=bias_scale,
            ROWS_FIRST=1 < rows <= _FEW_ROWS,
            DESCRIBED=described,
            # With sums in tensor memory, Triton 3.6 cannot compile programs that may begin again.
            FREE=v.dtype == torch.bfloat16 and not hardware.has_tensor_memory(q),
            DIM=dim,
            D=block,
            M=tile.queries,
            N=tile.keys,
            LOSS=loss_of(q).halves,
            STAGES=tile.stages,  # under this name, they hold for loads of biases, too
            num_warps=tile.warps,
            **register_limit(tile.registers),
        )
    return found


def _key_ranges(mask: Tensor) -> Tensor:
    """Return the first masked key of each row and the end of its kept keys, int32 [B, R, 2].

    The mask [B, R, T] is contiguous.
    """
    ranges = torch.empty(*mask.shape[:2], 2, dtype=torch.int32, device=mask.device)
    with torch.cuda.device_of(mask):
        _key_range_kernel[(mask.shape[0] * mask.shape[1],)](mask, ranges, mask.shape[2], N=_KEYS)
    return ranges


def _check(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None) -> None:
    """Check that the arguments of `pair_attention` fit together."""
    check_device(*(x for x in (q, k, v, bias, mask) if x is not None))
    check_shape("q", q, ("B", "R", "S", "H", "D"))
    batches, rows, queries, heads, dim = q.shape
    check_shape("k", k, (batches, rows, "T", heads, dim))
    check_shape("v", v, k.shape)
    check_shape("bias", bias, (batches, heads, queries, k.shape[2]))
    if mask is not None:
        check_shape("mask", mask, (batches, rows, k.shape[2]))
    if bias.dtype not in FLOATS:
        raise InputError(f"bias is {bias.dtype}: use float16, bfloat16 or float32")
    if dim > _LARGEST_DIM:
        raise InputError(f"the heads have {dim} channels: use at most {_LARGEST_DIM}")
