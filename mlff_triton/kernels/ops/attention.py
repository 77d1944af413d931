"""Softmax attention over packed sequences of any lengths, without the cost of padding.

    s_ij = scale q_i . k_j      s_ij <- cap tanh(s_ij / cap)      s_ij <- s_ij + bias_ij
    out_i = sum_j softmax_j(s_ij) v_j      for i and j in the same sequence

Each program owns a block of rows of one head. It loops over the keys once, block by block, keeping
the largest score so far, the sum of the exponentials and the weighted sum of the values (T. Dao et
al., "FlashAttention", https://arxiv.org/abs/2205.14135). Gradients are those of the reference, with
its memory use.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.attention import load_rows, store_rows, weigh
from mlff_triton.kernels.common.checks import check_device, check_pointers, check_shape, expanded
from mlff_triton.kernels.common.dense import accumulator, check_dense
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous
from mlff_triton.kernels.common.operators import operator, saved_inputs
from mlff_triton.kernels.numerics.exponential import LOG2_E
from mlff_triton.kernels.numerics.product import exact_precision
from mlff_triton.kernels.ops.reference import attention as reference

_SMALLEST = 16  # side of a block for matrix units


@triton.jit
def _scale_and_bias(
    scores,
    bias_ptr,
    row,
    key,
    known,
    length,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    SCALED_LATER: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Scale and cap scores [M, N], add the bias, and mask keys beyond the sequence.

    The result is an exponent of two, that is, in units of ln 2.
    """
    if CAP is None:
        if not SCALED_LATER:
            scores *= SCALE * LOG2_E
    else:
        decay = tl.exp(-2 * SCALE / CAP * tl.abs(scores))
        size = (CAP * LOG2_E) * (1 - decay) / (1 + decay)  # tanh
        scores = tl.where(scores < 0, -size, size)
    if bias_ptr is not None:
        exists = (row < length)[:, None] & known[None, :]
        bias = tl.load(bias_ptr + key[None, :], exists, other=0.0)
        scores += bias.to(scores.dtype) * LOG2_E
    if MASKED:
        scores = tl.where(known[None, :], scores, float("-inf"))
    return scores


@triton.jit
def _attend(
    q,
    keys,
    values,
    bias_ptr,
    place,
    sums,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Update sums, the largest score, sum and output [M, V], with a block of N keys and values.

    Keys and values are given by a pointer and the stride of rows; the place is the rows, the first
    key and the length of the sequence. MASKED is True if the sequence ends within the block.
    """
    k_ptr, k_row = keys
    v_ptr, v_row = values
    row, start, length = place
    peak, total, acc = sums
    D: tl.constexpr = q.shape[1]
    V: tl.constexpr = acc.shape[1]
    key, dim = start + tl.arange(0, N), tl.arange(0, D)
    known = (key < length) if MASKED else tl.full([N], True, tl.int1)
    k = tl.load(
        k_ptr + key.to(tl.int64)[None, :] * k_row + dim[:, None],
        known[None, :] & (dim < DIM)[:, None],
        other=0.0,
    )  # [D, N]
    scores = tl.dot(q, k, input_precision=PRECISION, out_dtype=acc.dtype)
    # Without cap and bias, scaling is fused with the later subtraction of the maximum.
    late: tl.constexpr = CAP is None and bias_ptr is None and SCALE > 0
    unit: tl.constexpr = SCALE * LOG2_E if late else 1.0
    scores = _scale_and_bias(scores, bias_ptr, row, key, known, length, SCALE, CAP, late, MASKED)
    weights, rescale, peak = weigh(scores, peak, UNIT=unit, MAY_BE_MASKED=bias_ptr is not None)
    v = load_rows(v_ptr, key, v_row, known, 0, VALUE_DIM, V)  # [N, V]
    total = total * rescale + tl.sum(weights, 1)
    weights, acc = weights.to(v.dtype), acc * rescale[:, None]
    acc = tl.dot(weights, v, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return peak, total, acc


@triton.jit
def _attention_fwd_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    bias_ptr,
    row_ptr_ptr,
    out_ptr,
    q_strides,
    k_strides,
    v_strides,
    bias_strides,
    group,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
):
    """Write out [T, H, VALUE_DIM].

    Reads q [T, H, DIM], k [T, G, DIM], v [T, G, VALUE_DIM] and bias [B, H, L, L] with the strides
    given, and row_ptr [B + 1]; ``group`` is H / G. Grid: (row blocks of M, H, B).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(row_ptr_ptr + sequence).to(tl.int64)
    length = (tl.load(row_ptr_ptr + sequence + 1) - first).to(tl.int32)
    if block * M >= length:
        return
    row, dim = block * M + tl.arange(0, M), tl.arange(0, D)
    known = row < length
    q = tl.load(
        q_ptr + (first + row)[:, None] * q_strides[0] + head * q_strides[1] + dim[None, :],
        known[:, None] & (dim < DIM)[None, :],
        other=0.0,
    )  # [M, D]
    k_ptr += first * k_strides[0] + head // group * k_strides[1]
    v_ptr += first * v_strides[0] + head // group * v_strides[1]

    peak = tl.full([M], float("-inf"), ACCUMULATE)
    sums = peak, tl.zeros([M], ACCUMULATE), tl.zeros([M, V], ACCUMULATE)
    if bias_ptr is not None:
        bias_ptr += sequence.to(tl.int64) * bias_strides[0] + head * bias_strides[1]
        bias_ptr += row.to(tl.int64)[:, None] * bias_strides[2]
    keys, values = (k_ptr, k_strides[0]), (v_ptr, v_strides[0])
    whole = length // N * N
    for start in range(0, whole, N):
        place = row, start, length
        sums = _attend(
            q,
            keys,
            values,
            bias_ptr,
            place,
            sums,
            SCALE,
            CAP,
            PRECISION,
            DIM,
            VALUE_DIM,
            N,
            MASKED=False,
        )
    if whole < length:
        place = row, whole, length
        sums = _attend(
            q,
            keys,
            values,
            bias_ptr,
            place,
            sums,
            SCALE,
            CAP,
            PRECISION,
            DIM,
            VALUE_DIM,
            N,
            MASKED=True,
        )
    _, total, acc = sums
    out_row = (first + row) * tl.num_programs(1) + head
    store_rows(out_ptr, acc / total[:, None], out_row, VALUE_DIM, known, 0, VALUE_DIM, V)


class _Tile(NamedTuple):
    rows: int
    keys: int
    warps: int
    stages: int


_FEW_ROWS = 32768  # rows times heads that barely fill an H200; early launches do not pay then


def _tile(q: Tensor, width: int, max_length: int, n_rows: int) -> _Tile:
    """Return the block sizes, as measured on an H200 for narrow heads in half precision.

    For all other heads, blocks of keys and of values are at most 16 KiB each. Short sequences get
    fewer rows.
    """
    if q.element_size() == 2 and width <= 64:
        rows = min(64, max(_SMALLEST, triton.next_power_of_2(max_length)))
        return _Tile(rows, 128, 4, 2) if n_rows <= _FEW_ROWS else _Tile(rows, 64, 4, 3)
    keys = min(64, max(_SMALLEST, 16384 // (width * q.element_size())))
    rows = {2: 128, 4: 64, 8: 32}[q.element_size()]
    if width > 128:
        rows //= 2
    rows = min(rows, max(_SMALLEST, triton.next_power_of_2(max_length)))
    stages = 1 if width * q.element_size() >= 1024 else 2
    return _Tile(rows, keys, 8 if rows == 128 else 4, stages)


def _empty_output(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    del k
    return q.new_empty(*q.shape[:2], v.shape[2])


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *given, row_ptr, max_length, scale, softcap, _ = saved_inputs(ctx)
    wanted = [t for t in given if t is not None]

    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return reference.attention(q, k, v, row_ptr, max_length, bias, scale, softcap)

    gradients: tuple[Tensor, ...] = torch.func.vjp(forward, *wanted)[1](grad)
    return gradients


@operator("attention", outputs=_empty_output, differentiate=_gradients)
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    row_ptr: Tensor,
    max_length: int,
    scale: float,
    softcap: float | None,
    precision: str,
) -> Tensor:
    """Launch the kernel for q [T, H, D], k [T, G, D] and v [T, G, V]; return [T, H, V]."""
    out = _empty_output(q, k, v)
    n_sequences, heads = len(row_ptr) - 1, q.shape[1]
    if not out.numel() or not n_sequences or not max_length:
        return out.zero_()
    dim, value_dim = q.shape[2], v.shape[2]
    width, value_width = (max(_SMALLEST, triton.next_power_of_2(d)) for d in (dim, value_dim))
    n_rows = len(q) * heads
    tile = _tile(q, max(width, value_width), max_length, n_rows)
    with torch.cuda.device_of(q):
        _attention_fwd_kernel[(triton.cdiv(max_length, tile.rows), heads, n_sequences)](
            q,
            k,
            v,
            bias,
            row_ptr,
            out,
            q.stride()[:2],
            k.stride()[:2],
            v.stride()[:2],
            (0, 0, 0) if bias is None else bias.stride()[:3],
            heads // k.shape[1],
            SCALE=scale,
            CAP=softcap,
            PRECISION=precision,
            ACCUMULATE=accumulator(q),
            DIM=dim,
            VALUE_DIM=value_dim,
            M=tile.rows,
            N=tile.keys,
            D=width,
            V=value_width,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **early_launch(q, pays=n_rows > _FEW_ROWS),
        )
    return out


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    row_ptr: Tensor,
    max_length: int,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Compute softmax attention within packed sequences; differentiable to any order.

    Parameters
    ----------
    q : [T, H, D]
        Queries of all sequences in order, for H heads; float16, bfloat16, float32 or float64. Half
        precisions are accumulated in float32.
    k, v : [T, G, D], [T, G, V]
        Keys and values, of the dtype of ``q``. G divides H, and H / G consecutive heads share keys
        and values.
    row_ptr : int64 or int32 [B + 1]
        Sequence ``b`` holds the rows ``row_ptr[b]:row_ptr[b + 1]``, from 0 to T without gaps. The
        values are not checked.
    max_length : int
        Length of the longest sequence, or more. Passing it spares the host a wait for the GPU.
    bias : broadcastable to [B, H, max_length, max_length], optional
        Added to the scores, of the dtype of ``q``; minus infinity masks a pair of rows. A row with
        all pairs masked gives NaN, as in PyTorch.
    scale : float, optional
        Factor of the scores; 1 / sqrt(D) by default.
    softcap : float, optional
        Bound on the absolute value of the scores, imposed by a tanh before the bias is added.

    Returns
    -------
    [T, H, V]
        Attention outputs, of the dtype of ``q``.

    Raises
    ------
    InputError
        If shapes, dtypes, devices or options do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> q, k, v = torch.randn(3, 7, 4, 16, device="cuda")
    >>> row_ptr = torch.tensor([0, 5, 7], device="cuda")
    >>> attention(q, k, v, row_ptr, max_length=5).shape
    torch.Size([7, 4, 16])
    """
    check_dense(q=q, k=k, v=v, bias=bias)
    check_device(q, row_ptr)
    check_shape("q", q, ("T", "H", "D"))
    check_shape("k", k, (len(q), "G", q.shape[2]))
    check_shape("v", v, (*k.shape[:2], "V"))
    check_pointers(row_ptr)
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise InputError(
            f"{q.shape[1]} heads cannot share the keys of {k.shape[1]}: use a divisor of the heads"
        )
    if softcap is not None and not 0 < softcap < math.inf:
        raise InputError(f"softcap must be positive and finite, not {softcap}: use None for none")
    if bias is not None:
        bias = expanded("bias", bias, (len(row_ptr) - 1, q.shape[1], max_length, max_length))
    out: Tensor = _attention(
        _with_dense_last_axis(q),
        _with_dense_last_axis(k),
        _with_dense_last_axis(v),
        None if bias is None else _with_dense_last_axis(bias),
        row_ptr,
        max_length,
        1 / math.sqrt(q.shape[2]) if scale is None else float(scale),
        None if softcap is None else float(softcap),
        exact_precision(q),
    )
    return out


def _with_dense_last_axis(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
