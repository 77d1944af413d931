"""Attention in sequence models of genomes, which never stores biases for all pairs of positions.

    relative   s_ij = (scale q_i + a) . k_j + (scale q_i + b) . r[j - i]
    capped     s_ij = cap tanh((scale q_i . k_j + bias[i / W, j / W]) / cap)

    out_i = sum_j softmax_j(s_ij) v_j

Each program owns a block of queries and loops over the keys once (T. Dao et al.,
"FlashAttention", https://arxiv.org/abs/2205.14135).

Relative: the position term of i0 + m and j0 + n depends on n - m. The product of the queries with N
consecutive rows of r gives a block whose row m is rotated by m. This block of keys needs the part
with n >= m, and the next block needs the rest. So each row of r is multiplied once per block of
queries.

Capped: biases belong to pairs of bins of W positions. All heads of a position share keys and
values, so they are rows of one product. The bias is added by another product, of an indicator of
head and bin with the biases of the keys. Scores are bounded, so the sum of exponentials needs no
running maximum.

Sources: Ž. Avsec et al., "Effective gene expression prediction from sequence by integrating
long-range interactions" (Enformer), https://doi.org/10.1038/s41592-021-01252-x; Ž. Avsec et al.,
"Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.attention import load_rows, store_rows, weigh
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.checks import check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.common.hardware import multiprocessors
from mlff_triton.kernels.numerics.exponential import LOG2_E

_HALVES = (torch.float16, torch.bfloat16)
_LARGEST = tl.constexpr(65504.0)  # finite value of float16


@triton.jit
def _position_scores(q, difference, rel_ptr, row, head, length, heads, turn, DIM: tl.constexpr):
    """Multiply queries [N, D], plus a difference of biases, by rows of r, and rotate row m by m."""
    D: tl.constexpr = q.shape[1]
    known = (row >= 0) & (row < 2 * length - 1)
    rel = load_rows(rel_ptr + head * DIM, row, heads * DIM, known, 0, DIM, D)  # [N, D]
    shift = tl.sum(rel.to(tl.float32) * difference[None, :], 1)
    return tl.gather(tl.dot(q, rel.T) + shift[None, :], turn, 1)


@triton.jit
def _relative_attention_fwd_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    rel_ptr,
    content_ptr,
    position_ptr,
    out_ptr,
    length,
    q_batch,
    q_row,
    q_head,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    SCALE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    REST: tl.constexpr,
    N: tl.constexpr,
):
    """Write out [B, S, H, VALUE_DIM].

    Reads q, k, v with the strides given, rel [2 S - 1, H, DIM] and biases [H, DIM]. Values are
    split into V and REST columns. Grid: (blocks of N rows, H, B).
    """
    first, head, batch = tl.program_id(0) * N, tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(1)
    m, n, dim = tl.arange(0, N), tl.arange(0, N), tl.arange(0, D)
    row = first + m
    q = load_rows(q_ptr + batch * q_batch + head * q_head, row, q_row, row < length, 0, DIM, D).to(
        tl.float32
    )  # [N, D]
    content = tl.load(content_ptr + head * DIM + dim, dim < DIM, other=0.0).to(tl.float32)
    position = tl.load(position_ptr + head * DIM + dim, dim < DIM, other=0.0).to(tl.float32)
    # Both products use the same queries, as registers are scarce.
    q = (q * SCALE + content[None, :]).to(k_ptr.dtype.element_ty)
    difference = position - content
    k_ptr += batch * k_batch + head * k_head
    v_ptr += batch * v_batch + head * v_head

    turn = (n[None, :] - m[:, None]) & (N - 1)
    above = n[None, :] >= m[:, None]
    peak = tl.full([N], float("-inf"), tl.float32)
    total = tl.zeros([N], tl.float32)
    acc = tl.zeros([N, V], tl.float32)
    rest = tl.zeros([N, REST or 1], tl.float32)
    rel_row = length - 1 - first + n
    before = _position_scores(q, difference, rel_ptr, rel_row - N, head, length, heads, turn, DIM)
    for start in range(0, length, N):
        key = start + n
        known = key < length
        k = load_rows(k_ptr, key, k_row, known, 0, DIM, D)  # [N, D]
        here = _position_scores(
            q, difference, rel_ptr, rel_row + start, head, length, heads, turn, DIM
        )
        scores = tl.dot(q, k.T) + tl.where(above, here, before)
        before = here
        scores = tl.where(known[None, :], scores * LOG2_E, float("-inf"))
        weights, rescale, peak = weigh(scores, peak)
        total = total * rescale + tl.sum(weights, 1)
        weights = weights.to(v_ptr.dtype.element_ty)
        v = load_rows(v_ptr, key, v_row, known, 0, VALUE_DIM, V)
        acc = tl.dot(weights, v, acc * rescale[:, None])
        if REST:
            v_rest = load_rows(v_ptr, key, v_row, known, V, VALUE_DIM, REST)
            rest = tl.dot(weights, v_rest, rest * rescale[:, None])

    out_ptr += (batch * length * heads + head) * VALUE_DIM
    stride = heads * VALUE_DIM
    store_rows(out_ptr, acc / total[:, None], row, stride, row < length, 0, VALUE_DIM, V)
    if REST:
        store_rows(out_ptr, rest / total[:, None], row, stride, row < length, V, VALUE_DIM, REST)


@triton.jit
def _capped_attention_fwd_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    bias_ptr,
    out_ptr,
    length,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BIASES: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    REST: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Write out [B, S, HEADS, VALUE_DIM].

    Reads q [B, S, HEADS, DIM], k [B, S, DIM], v [B, S, VALUE_DIM] and bias
    [B, S / WIDTH, S / WIDTH, HEADS]. Rows of a product are pairs of a position and a head. Values
    are split into V and REST columns. Grid: (blocks of M rows, B).
    """
    first, batch = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    row, n = first + tl.arange(0, M), tl.arange(0, N)
    n_rows, n_bins = length * HEADS, length // WIDTH
    q = load_rows(q_ptr + batch * n_rows * DIM, row, DIM, row < n_rows, 0, DIM, D)  # [M, D]
    k_ptr += batch * length * DIM
    v_ptr += batch * length * VALUE_DIM

    # Column c of the indicator stands for a head, and for a bin of the rows of this program.
    first_bin = first // (WIDTH * HEADS)
    c = tl.arange(0, BIASES)
    own = (row // (WIDTH * HEADS) - first_bin) * HEADS + row % HEADS
    indicator = (own[:, None] == c[None, :]).to(q.dtype)  # [M, BIASES]
    bin_of_c = first_bin + c // HEADS
    bias_ptr += (batch * n_bins + bin_of_c) * n_bins * HEADS + c % HEADS

    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, V], tl.float32)
    rest = tl.zeros([M, REST or 1], tl.float32)
    for start in range(0, length, N):
        key = start + n
        known = key < length
        k = load_rows(k_ptr, key, DIM, known, 0, DIM, D)  # [N, D]
        bias = tl.load(
            bias_ptr[:, None] + (key // WIDTH)[None, :] * HEADS,
            (bin_of_c < n_bins)[:, None] & known[None, :],
            other=0.0,
        )  # [BIASES, N]
        # Larger biases are far beyond the cap, and infinity times a zero of the indicator is NaN.
        bias = bias.to(tl.float32) * (1 / SCALE)
        bias = tl.clamp(bias, -_LARGEST, _LARGEST, propagate_nan=tl.PropagateNan.ALL).to(q.dtype)
        scores = tl.dot(indicator, bias, tl.dot(q, k.T))
        # cap tanh(x / cap) is cap - 2 cap / (1 + exp(2 x / cap)).
        scores *= 2 * SCALE / CAP * LOG2_E
        growth = tl.exp2(tl.minimum(scores, 100.0, propagate_nan=tl.PropagateNan.ALL))
        weights = tl.exp2(CAP * LOG2_E - (2 * CAP * LOG2_E) / (1 + growth))
        weights = tl.where(known[None, :], weights, 0.0)
        total += tl.sum(weights, 1)
        weights = weights.to(v_ptr.dtype.element_ty)
        v = load_rows(v_ptr, key, VALUE_DIM, known, 0, VALUE_DIM, V)
        acc = tl.dot(weights, v, acc)
        if REST:
            v_rest = load_rows(v_ptr, key, VALUE_DIM, known, V, VALUE_DIM, REST)
            rest = tl.dot(weights, v_rest, rest)

    out_ptr += batch * n_rows * VALUE_DIM
    known_row = row < n_rows
    store_rows(out_ptr, acc / total[:, None], row, VALUE_DIM, known_row, 0, VALUE_DIM, V)
    if REST:
        store_rows(out_ptr, rest / total[:, None], row, VALUE_DIM, known_row, V, VALUE_DIM, REST)


class _Tile(NamedTuple):
    rows: int
    keys: int
    warps: int
    stages: int


_RELATIVE = _Tile(64, 64, 4, 2)  # with as many rows as keys
_CAPPED_SHORT, _CAPPED_LONG = _Tile(64, 64, 4, 2), _Tile(128, 64, 8, 2)


class _Columns(NamedTuple):
    """Blocks of the columns of values: 128 and 64 for 129 to 192 columns, otherwise one block.

    Other pairs of blocks are not used: for some, such as 32 and 16, the assembler of CUDA 12.9 for
    Hopper reads a register that it has not written, and the second block is wrong.
    """

    first: int
    rest: int

    @classmethod
    def of(cls, dim: int) -> _Columns:
        if 128 < dim <= 192:
            return cls(128, 64)
        return cls(block_side(dim), 0)


def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rel_k: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Compute attention with keys for content and for relative positions, without gradients.

    Parameters
    ----------
    q, k : [B, S, H, D]
        Queries and keys, float16 or bfloat16. Only the last axis must be contiguous.
    v : [B, S, H, V]
        Values.
    rel_k : [2 S - 1, H, D]
        Keys of relative positions j - i = 1 - S to S - 1.
    content_bias, position_bias : [H, D]
        Biases added to scaled queries before the products with ``k`` and ``rel_k``, respectively.
    scale : float, optional
        Factor of the queries; 1 / sqrt(D) by default.

    Returns
    -------
    [B, S, H, V]
        Attention outputs, of the dtype of ``q``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> q, k, v = torch.randn(3, 1, 7, 2, 16, device="cuda").half()
    >>> rel_k = torch.randn(13, 2, 16, device="cuda").half()
    >>> bias = torch.zeros(2, 16, device="cuda").half()
    >>> relative_attention(q, k, v, rel_k, bias, bias).shape
    torch.Size([1, 7, 2, 16])
    """
    biases = {"content_bias": content_bias, "position_bias": position_bias}
    check_same(_HALVES, {"q": q, "k": k, "v": v, "rel_k": rel_k, **biases})
    check_shape("q", q, ("B", "S", "H", "D"))
    batch, length, heads, dim = q.shape
    check_shape("k", k, q.shape)
    check_shape("v", v, (*q.shape[:3], "V"))
    check_shape("rel_k", rel_k, (2 * length - 1, heads, dim))
    for name, bias in biases.items():
        check_shape(name, bias, (heads, dim))
    out = q.new_empty(*q.shape[:3], v.shape[3])
    if not out.numel():
        return out
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    rows, _, warps, stages = _RELATIVE
    columns = _Columns.of(v.shape[3])
    with torch.cuda.device_of(q):
        _relative_attention_fwd_kernel[(triton.cdiv(length, rows), heads, batch)](
            q,
            k,
            v,
            rel_k.contiguous(),
            content_bias.contiguous(),
            position_bias.contiguous(),
            out,
            length,
            *q.stride()[:3],
            *k.stride()[:3],
            *v.stride()[:3],
            SCALE=dim**-0.5 if scale is None else float(scale),
            DIM=dim,
            VALUE_DIM=v.shape[3],
            D=block_side(dim),
            V=columns.first,
            REST=columns.rest,
            N=rows,
            num_warps=warps,
            num_stages=stages,
        )
    return out


def capped_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pair_bias: Tensor,
    cap: float = 5.0,
    scale: float | None = None,
) -> Tensor:
    """Compute capped attention of heads that share keys and values, without gradients.

    Parameters
    ----------
    q : [B, S, H, D]
        Queries, float16 or bfloat16.
    k, v : [B, S, D], [B, S, V]
        Keys and values of all heads.
    pair_bias : [B, P, P, H]
        Bias added to the scores of all pairs of positions in a pair of bins of S / P positions.
    cap : float
        Bound on the absolute value of the scores, imposed by a tanh; positive and at most 10.
    scale : float, optional
        Factor of the products; 1 / sqrt(D) by default.

    Returns
    -------
    [B, S, H, V]
        Attention outputs, of the dtype of ``q``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or the cap is out of range.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> q, k = torch.randn(1, 32, 8, 16).cuda().half(), torch.randn(1, 32, 16).cuda().half()
    >>> capped_attention(q, k, k, torch.zeros(1, 2, 2, 8, device="cuda").half()).shape
    torch.Size([1, 32, 8, 16])
    """
    check_same(_HALVES, {"q": q, "k": k, "v": v, "pair_bias": pair_bias})
    check_shape("q", q, ("B", "S", "H", "D"))
    batch, length, heads, dim = q.shape
    check_shape("k", k, (batch, length, dim))
    check_shape("v", v, (batch, length, "V"))
    check_shape("pair_bias", pair_bias, (batch, "P", "P", heads))
    n_bins = pair_bias.shape[1]
    if pair_bias.shape[2] != n_bins or not n_bins or length % n_bins:
        raise InputError(f"pair_bias must have a number of bins that divides the length {length}")
    if not 0 < cap <= 10:
        raise InputError(f"cap must be positive and at most 10, so that weights fit, not {cap}")
    out = q.new_empty(batch, length, heads, v.shape[2])
    if not out.numel():
        return out
    n_rows, width = length * heads, length // n_bins
    few = batch * triton.cdiv(n_rows, _CAPPED_LONG.rows) < 2 * multiprocessors(q.device)
    rows, keys, warps, stages = _CAPPED_SHORT if few else _CAPPED_LONG
    columns = _Columns.of(v.shape[2])
    with torch.cuda.device_of(q):
        _capped_attention_fwd_kernel[(triton.cdiv(n_rows, rows), batch)](
            *(x.contiguous() for x in (q, k, v, pair_bias)),
            out,
            length,
            SCALE=dim**-0.5 if scale is None else float(scale),
            CAP=float(cap),
            HEADS=heads,
            WIDTH=width,
            DIM=dim,
            VALUE_DIM=v.shape[2],
            BIASES=_indicator_columns(rows, width, heads),
            D=block_side(dim),
            V=columns.first,
            REST=columns.rest,
            M=rows,
            N=keys,
            num_warps=warps,
            num_stages=stages,
        )
    return out


def _indicator_columns(rows: int, width: int, heads: int) -> int:
    """Return the number of columns of the indicator, for all heads and bins of a block of rows."""
    per_bin = width * heads
    aligned = per_bin % rows == 0 or rows % per_bin == 0
    bins = (rows - 1) // per_bin + (1 if aligned else 2)
    return block_side(bins * heads)
